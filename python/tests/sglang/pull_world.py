"""Two engines with SGLang's own prefix caches and allocators, and messengers between them that a test moves by hand.

A slot's KV is the digest of all tokens up to its own, so wrong bytes are seen wherever they are used.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kv_connector.runtime.commands import Ask, Decline, Offer, PrefillEnded, PullEnded, Withdraw
from kv_connector.runtime.facade import Asked, Offered
from kv_connector.sglang.exchange import Incoming
from kv_connector.sglang.landings import PullingRank
from kv_connector.sglang.pair_states import PairStates
from kv_connector.sglang.prefix_pulls import agree
from kv_connector.sglang.prefix_tree import PrefixTree
from kv_connector.sglang.pull_offers import Offers
from kv_connector.sglang.pull_ranks import PullRanks
from kv_connector.sglang.pull_rules import PullRules
from kv_connector.sglang.pulls import Pull, Pulls

POOL_TOKENS = 256
OF_THEIR_OWN = (
    "lora_id",
    "extra_key",
    "session_id",
    "session",
    "multimodal_inputs",
    "input_embeds",
    "positional_embed_overrides",
)
"""The fields of requests whose KV their tokens alone do not say."""


def kv_of(tokens: Sequence[int], place: int, salt: str) -> int:
    """The KV of one token: what it is computed from."""
    return hash((tuple(tokens[: place + 1]), salt)) % (1 << 40) + 1


class Messenger:
    """One engine's end of the network: what it has submitted stays until the test delivers it."""

    def __init__(self, port: int) -> None:
        self.opened = SimpleNamespace(control_host="127.0.0.1", control_port=port)
        self.asks: list[Ask] = []
        self.offers: list[Offer] = []
        self.declined: list[Decline] = []
        self.withdrawn: list[str] = []
        self.outcomes: list[str] = []
        self.fetches: list[Any] = []
        self.abandoned: list[Incoming] = []
        self.compared: list[str] = []
        self.ended: list[str] = []
        self.takes = True

    def submit(self, command: Any) -> bool:
        if isinstance(command, PullEnded):
            self.outcomes.append(command.outcome)
            return True
        kinds: list[tuple[type, list[Any]]] = [(Ask, self.asks), (Offer, self.offers), (Decline, self.declined)]
        for kind, taken in kinds:
            if isinstance(command, kind) and self.takes:
                taken.append(command)
        if isinstance(command, PrefillEnded):
            self.ended.append(command.request)
        if isinstance(command, Withdraw):
            self.withdrawn.append(command.request)
        return self.takes

    def fetch_offered(self, transfer: Any, _prefillers: Any, tokens: Any, pages: Any, **_: Any) -> Incoming:
        incoming = Incoming(f"{transfer[0]}#1", 0)
        self.fetches.append((transfer, tokens, pages, incoming))
        return incoming

    def abandon(self, incoming: Incoming) -> None:
        self.abandoned.append(incoming)

    def count_compared(self, outcome: str, *_: Any) -> None:
        self.compared.append(outcome)


class Proof:
    """Lets a pair be proven or not, as a test wants."""

    def __init__(self, *, check: Any = "off", right: bool = True) -> None:
        self.pairs = PairStates(check, weights=lambda: "", logger=logging.getLogger("proof"))
        self.due = self.impossible = False
        self.right = right

    def is_impossible(self) -> bool:
        return self.impossible

    def is_due(self, _arrival: Any) -> bool:
        return self.due

    def proves(self, *_: Any) -> bool:
        return self.right


@dataclass
class Passes:
    over: bool = True

    def are_over(self) -> bool:
        return self.over


@dataclass
class Engine:
    """One engine of the two."""

    port: int
    page_tokens: int
    now: list[float] = field(default_factory=lambda: [100.0])
    weights: list[str] = field(default_factory=lambda: [""])
    passes: Passes = field(default_factory=Passes)
    proof: Proof = field(default_factory=Proof)
    rules: PullRules = field(default_factory=lambda: PullRules("", True, True, 1, 0.5, 5.0, "off"))
    ranks: PullRanks = field(default_factory=PullRanks)
    source_ranks: Callable[[int], Sequence[int]] = range
    """Which of a source's so many ranks hold a part of this one's KV."""
    part: str = ""
    """Of the KV, which this rank has: a rank's bytes are wrong at another rank."""

    def __post_init__(self) -> None:
        kv = MHATokenToKVPool(POOL_TOKENS, self.page_tokens, torch.float32, 1, 1, 1, "cpu", enable_memory_saver=False)
        made: tuple[Any, ...] = (POOL_TOKENS, torch.float32, "cpu", kv, False)
        if self.page_tokens > 1:
            made = (POOL_TOKENS, self.page_tokens, *made[1:])
        self.allocator: Any = (TokenToKVPoolAllocator if self.page_tokens == 1 else PagedTokenToKVPoolAllocator)(*made)
        rows = ReqToTokenPool(size=8, max_context_len=POOL_TOKENS, device="cpu", enable_memory_saver=False)
        self.tree = UnifiedRadixCache(
            CacheInitParams(
                disable=False,
                req_to_token_pool=rows,
                token_to_kv_pool_allocator=self.allocator,
                page_size=self.page_tokens,
                tree_components=(ComponentType.FULL,),
            )
        )
        self.kv = torch.zeros(POOL_TOKENS + self.page_tokens, dtype=torch.int64)
        self.late_slots: set[int] = set()
        """Those that a pass which is queued still writes to, although other work may have them by now."""
        self.scheduler = SimpleNamespace(
            tree_cache=self.tree,
            token_to_kv_pool_allocator=self.allocator,
            chunked_req=None,
            last_batch=None,
            running_batch=None,
            waiting_queue=[],
            disagg_decode_prealloc_queue=None,
            enable_overlap=False,
        )
        logger, prefix = logging.getLogger("pulls"), PrefixTree(self.scheduler)
        self.prefix, take = prefix, prefix.take
        note: Any = lambda count: self.note_taken(take(count))  # noqa: E731
        prefix.take = note  # type: ignore[method-assign]
        self.messenger: Any = Messenger(self.port)
        weights = lambda: self.weights[0]  # noqa: E731
        proof: Any = self.proof
        made_passes: Any = lambda: self.passes  # noqa: E731
        now_seconds = lambda: self.now[0]  # noqa: E731
        own = PullingRank(
            tree=prefix,
            exchange=self.messenger,
            proof=proof,
            ranks=self.ranks,
            passes=made_passes,
            weights=weights,
            source_ranks=self.source_ranks,
            logger=logger,
            now_seconds=now_seconds,
        )
        self.pulls = Pulls(own, self.rules)
        more: tuple[Any, ...] = (self.ranks, made_passes, weights, logger, now_seconds)
        self.offers = Offers(prefix, self.rules, self.messenger, *more)

    def poll(self) -> None:
        """A round of its scheduler."""
        agree(self.ranks, self.pulls.landings, self.offers)
        self.pulls.poll()
        self.offers.poll()

    def note_taken(self, slots: Any) -> Any:
        """What is taken while passes are queued may be what an aborted chunk of theirs had."""
        if slots is not None and not self.passes.over:
            self.late_slots.update(slots.tolist())
        return slots

    def end_passes(self) -> None:
        """The passes that are queued write what they compute, wherever that belongs by now."""
        for slot in self.late_slots:
            self.kv[slot] = 7
        self.late_slots.clear()
        self.passes.over = True

    def request(self, tokens: Sequence[int], source: int, salt: str = "", **more: Any) -> Any:
        """A request of SGLang that names the engine whose messenger has this port."""
        address = {"remote_host": "127.0.0.1", "remote_port": source}
        fields: dict[str, Any] = {
            "rid": "r",
            "origin_input_ids": array("q", tokens),
            "cache_salt": salt or None,
            "sampling_params": SimpleNamespace(custom_params={"remote_kv_source": address}),
            "_compute_max_prefix_len": lambda length: length - 1,
            **dict.fromkeys(OF_THEIR_OWN),
        }
        return SimpleNamespace(**(fields | more))

    def compute(self, tokens: Sequence[int], salt: str = "") -> None:
        """As SGLang computes a prompt: what its cache lacks goes into new pages, and then into its cache."""
        whole = self.prefix.whole_pages(len(tokens))
        held = self.prefix.hold(tokens[:whole], salt)
        slots = self.prefix.take(whole - held.token_count)
        assert slots is not None
        self.late_slots -= set(slots.tolist())  # a pass comes after those that were queued before it
        for offset, slot in enumerate(slots.tolist()):
            self.kv[slot] = kv_of(tokens, held.token_count + offset, salt + self.part)
        self.prefix.add(tokens[:whole], salt, held.slots, slots)
        self.prefix.let_go(held)

    def cached(self, tokens: Sequence[int], salt: str = "") -> int:
        """How many tokens the cache has, all of which hold the right KV."""
        key = RadixKey(array("q", tokens), None, cache_salt=salt or None)
        found = self.tree.match_prefix(MatchPrefixParams(key=key))
        slots = self.tree.path_device_indices(found.last_device_node)[: found.device_prefix_len]
        right = [kv_of(tokens, place, salt + self.part) for place in range(len(slots))]
        assert [int(self.kv[slot]) for slot in slots.tolist()] == right, "the cache has wrong KV"
        return len(slots)

    def assert_whole(self) -> None:
        """Each page is free or the cache's, and none is kept there."""
        assert self.tree.protected_size() == 0
        assert self.allocator.available_size() + self.tree.evictable_size() == POOL_TOKENS
        self.tree.sanity_check()


@dataclass
class World:
    """An asker and a source."""

    page_tokens: int = 4
    asker: Engine = field(init=False)
    source: Engine = field(init=False)

    asked: dict[str, str] = field(default_factory=dict)
    offered: list[Offer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asker, self.source = Engine(1, self.page_tokens), Engine(2, self.page_tokens)

    def ask(self, tokens: Sequence[int], salt: str = "", **more: Any) -> Pull:
        pull = self.asker.pulls.queued(self.asker.request(tokens, 2, salt, **more))
        assert pull is not None, self.asker.messenger.outcomes
        return pull

    def deliver_asks(self, parts: int = 1) -> None:
        """The source's scheduler gets the questions, in parts."""
        for ask in self.asker.messenger.asks:
            ids, size = list(ask.prompt_token_ids), max(1, -(-len(ask.prompt_token_ids) // parts))
            for first in range(0, len(ids), size):
                part = Asked(ask.transfer, ask.prompt_digest, ask.cache_salt, len(ids), ids[first : first + size])
                self.source.offers.asked(part)
        self.asked |= {ask.transfer: ask.request for ask in self.asker.messenger.asks}
        self.asker.messenger.asks.clear()
        self.source.offers.poll()

    def deliver_offers(self) -> list[Offer]:
        """The asker's scheduler gets the answers."""
        offers, self.source.messenger.offers = self.source.messenger.offers, []
        self.offered += offers
        for offer in offers:
            self.asker.pulls.offered(Offered(self.asked[offer.transfer], offer.held_tokens, offer.reason))
        return offers

    def land(self, offer: Offer, *, arrives: bool = True) -> None:
        """The fetch of an offer ends, and then the offer."""
        for transfer, (first, end), pages, incoming in self.asker.messenger.fetches:
            if transfer[0] == offer.transfer:
                if arrives:
                    self._copy(offer, first, end, pages[0].pages)
                    incoming.arrived = True
                else:
                    incoming.failure = "the source is gone"
        self.source.offers.released(offer.request)
        self.asker.poll()

    def _copy(self, offer: Offer, first: int, end: int, pages: Sequence[int]) -> None:
        size = self.page_tokens
        theirs = list(offer.groups[0].pages)[first // size : end // size]
        assert len(theirs) == len(pages)
        for there, here in zip(theirs, pages, strict=True):
            self.asker.kv[here * size : (here + 1) * size] = self.source.kv[there * size : (there + 1) * size]

    def deliver_declines(self) -> None:
        """The source's messenger releases what the asker does not want."""
        unwanted = {decline.transfer for decline in self.asker.messenger.declined}
        for offer in self.offered:
            if offer.transfer in unwanted:
                self.source.offers.released(offer.request)

    def assert_at_rest(self) -> None:
        self.deliver_declines()
        for engine in (self.asker, self.source):
            engine.assert_whole()
        assert not self.asker.pulls.landing_count()
        assert not self.source.offers.held_count()
