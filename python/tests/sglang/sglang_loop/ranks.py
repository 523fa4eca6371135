"""The ranks of one engine: each has the real endpoint of the backend, over a simulated messenger.

SGLang's ranks do the same to each request in the same round, and agree on the lowest state of all of them; so one loop
stands for all schedulers of an engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from kv_connector import LayerCounter
from kv_connector.naming.pair_rules import Check
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import Exchange
from kv_connector.sglang.first_contacts import FirstContacts
from kv_connector.sglang.layerwise import LayerwiseSteps
from kv_connector.sglang.model_pools import ModelPools
from kv_connector.sglang.page_numbers import PageNumbers
from kv_connector.sglang.pair_check import PairCheck
from kv_connector.sglang.pair_states import PairStates
from kv_connector.sglang.pool_kinds import KINDS, WINDOWED
from kv_connector.sglang.prefillers import Prefillers
from kv_connector.sglang.sglang_api import KVTransferError
from kv_connector.sglang.twins import Twins
from sglang_loop.beside_pool import BesidePool
from sglang_loop.messenger import Memory, SimulatedMessenger
from sglang_loop.network import Network
from sglang_loop.pools import HEADS, LAYERS, Pool

LAYER_NAMES = [f"layer.{layer}" for layer in range(LAYERS)]
MASK = (1 << 64) - 1
LOGGER = logging.getLogger("sglang-loop")


@dataclass(frozen=True)
class EnginePlan:
    """How one engine is started."""

    name: str
    tp_size: int
    pages: int
    slots: int
    page_tokens: int
    caches: bool
    overlap: bool
    chunk_tokens: int
    """Of a prefiller's passes."""
    early: bool
    """SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX."""
    layerwise: bool
    device: bool
    """Whether passes are queued, and computed later."""
    exits_when_lost: bool
    running_rounds: int
    """For how many rounds a decoder computes an answer."""
    beside: str = ""
    """SGLang's name of the kind of its second pool; "" = there is none."""
    window_tokens: int = 0
    dp_rank: int = 0
    """Data-parallel ranks share a bootstrap server, and nothing else."""
    dp_size: int = 1
    running_max: int = 1 << 20
    """How many requests a decoder computes at once; the others wait with their KV."""
    check: Check = "off"
    """Of a decoder, ``last_token_check``."""
    computes_otherwise: bool = False
    """Of a prefiller: its KV is not that of the decoders."""

    @property
    def server(self) -> str:
        """What its data-parallel ranks have in common."""
        return self.name.partition("-")[0]


def pools_of(plan: EnginePlan) -> ModelPools:
    """Its pools, as SGLang's kinds have them of a prompt; no memory is described."""
    names = [plan.beside] if plan.beside else []
    with_heads = SimpleNamespace(group={"kvHeadCount": HEADS})
    return ModelPools(
        pools=cast(Any, [with_heads] * (2 if plan.beside == WINDOWED else 1)),
        groups_of=[0] * len(names),
        kinds=[KINDS[name] for name in names],
        names=names,
        model=cast(Any, SimpleNamespace(page_tokens=plan.page_tokens, window_tokens=plan.window_tokens)),
    )


class SimulatedEndpoint(TransferEndpoint):
    """A real one, whose start needs no model."""

    def __init__(
        self, network: Network, plan: EnginePlan, tp_rank: int, mode: str, messenger: SimulatedMessenger
    ) -> None:
        self.exchange = Exchange(
            messenger,
            LOGGER,
            lambda: network.now,
            exit_when_lost=plan.exits_when_lost,
            unheard_seconds=network.limits.late_event,
        )
        self.prefillers = Prefillers(network.route, cast(Any, network))
        self.pair_check = None
        if mode == "decode":
            pairs = PairStates(plan.check, weights=lambda: "w", logger=LOGGER, now_seconds=lambda: network.now)
            self.exchange.on_connected = pairs.connected
            self.pair_check = PairCheck(pairs, self.exchange, None, window_tokens=plan.window_tokens, logger=LOGGER)
        self.next_prompt_digest, self.next_prompt_tokens = "", 0
        self.next_pull = self.prefix_pulls = None
        self.steps = None
        self.page_numbers = PageNumbers(None)
        self._latent = False
        self.kv_args = SimpleNamespace(
            page_size=plan.page_tokens, engine_rank=tp_rank, kv_item_lens=[], num_draft_entries=0
        )
        self.kv_cache_dtype_str = "bfloat16"
        self.kv_layout = self.dsv41_spec_layout = None
        self.is_mla_backend = self.is_hybrid_mla_backend = False
        self.attn_tp_size, self.attn_tp_rank, self.attn_cp_size, self.attn_cp_rank = plan.tp_size, tp_rank, 1, 0
        self.attn_dp_rank, self.dcp_size, self.pp_size, self.pp_rank = plan.dp_rank, 1, 1, 0
        self.prefill_info_table = {}
        self.bootstrap_timeout, self.waiting_timeout = network.limits.bootstrap, network.limits.fetch
        self._pools = pools_of(plan)
        self._first_contacts = FirstContacts(lambda question: self.prefillers.run(question))
        self._asked_again, self._unfit = {}, {}
        self.misplaced: set[int] = set()
        """Rooms that have come to the wrong data-parallel rank."""

    def place_room(self, bootstrap_addr: str, room: int, dp_rank_is_known: bool) -> str:  # noqa: ARG002 - as it is called
        return "it is misplaced" if room in self.misplaced else ""

    def tables(self) -> dict[str, int]:
        """What it still keeps for requests."""
        asked = [contact for contact in self._first_contacts._open.values() if not contact.done()]
        return {
            name: count
            for name, count in {
                "first contacts": len(asked),
                "late declines": self.prefillers.late_declines.count(),
                "digests": int(bool(self.next_prompt_digest)),
                **self.exchange.held(),
            }.items()
            if count
        }


class Stream:
    """A GPU's: what is queued is computed later, in order."""

    def __init__(self) -> None:
        self.queued: deque[Callable[[], None]] = deque()
        self.done_count = 0
        self.queued_count = 0

    def queue(self, work: Callable[[], None]) -> None:
        self.queued.append(work)
        self.queued_count += 1

    def run(self, until: int) -> bool:
        """Everything that was queued before the count was ``until``."""
        ran = False
        while self.queued and self.done_count < until:
            self.queued.popleft()()
            self.done_count += 1
            ran = True
        return ran

    def event(self) -> Any:
        until = self.queued_count
        return SimpleNamespace(query=lambda: self.done_count >= until)


@dataclass(eq=False)
class Word:
    """The counter's word as ``QueuedWord`` has it."""

    stream: Stream
    messenger: SimulatedMessenger
    _bound: int = 0

    def bump(self) -> None:
        self.stream.queue(self._bump)

    def _bump(self) -> None:
        if self.messenger.word.value != self._bound:
            self.messenger.word.value = (self.messenger.word.value + 1) & MASK

    def place(self, count: int, bound: int) -> None:
        self.stream.queue(lambda: self._place(count, bound))

    def _place(self, count: int, bound: int) -> None:
        self.messenger.word.value, self._bound = count, bound

    def capture(self) -> int:
        return 0

    def wait(self) -> None:
        raise AssertionError("no pass is checked here")


@dataclass(eq=False)
class Rank:
    messenger: SimulatedMessenger
    memory: Memory
    endpoint: SimulatedEndpoint
    counter: LayerCounter | None = None


@dataclass(eq=False)
class Slots:
    """SGLang's metadata buffers: which are free, and what the rest hold on each rank."""

    ranks: Sequence[Rank]
    free: deque[int] = field(default_factory=deque)

    def alloc(self, owner: Any) -> int | None:
        if not self.free:
            return None
        slot = self.free.popleft()
        for rank in self.ranks:
            rank.memory.row_owners[slot] = owner
        return slot

    def release(self, slot: int) -> None:
        for rank in self.ranks:
            del rank.memory.row_owners[slot]
            rank.memory.rows.pop(slot, None)
        self.free.append(slot)


def open_ranks(
    network: Network, plan: EnginePlan, mode: str, name: str, port: int, pools: tuple[Pool, BesidePool], stream: Stream
) -> list[Rank]:
    """The ranks of an engine that starts; ``name``: of this start."""
    ranks = []
    for tp_rank in range(plan.tp_size):
        memory = Memory(*pools)
        place = (tp_rank, plan.tp_size)
        messenger = SimulatedMessenger(network, name, (plan.name, port + tp_rank), place, memory, plan.page_tokens)
        endpoint = SimulatedEndpoint(network, plan, tp_rank, mode, messenger)
        rank = Rank(messenger, memory, endpoint)
        if mode == "prefill" and plan.layerwise and not plan.beside:  # as ``_watch_layers`` has it
            word = Word(stream, messenger) if plan.device else None
            rank.counter = LayerCounter(messenger.opened.layer_counter_address, LAYER_NAMES, word)
            endpoint.steps = LayerwiseSteps(endpoint.exchange, rank.counter, Twins(plan.page_tokens, 2))
        ranks.append(rank)
    return ranks


class AllRanks:
    """What all ranks have of one request: senders, or receivers."""

    def __init__(self, of_ranks: Sequence[Any]) -> None:
        self.of_ranks = of_ranks

    def poll(self) -> int:
        """The state on which they agree."""
        return int(min(each.poll() for each in self.of_ranks))

    def abort(self) -> None:
        for each in self.of_ranks:
            each.abort()

    def clear(self) -> None:
        for each in self.of_ranks:
            each.clear()

    def failure(self) -> str:
        """Why it failed, as SGLang asks for it on each rank."""
        sentences = []
        for each in self.of_ranks:
            try:
                each.failure_exception()
            except KVTransferError as failed:
                sentences.append(str(failed))
        assert len(sentences) == len(self.of_ranks), "a failed transfer raised nothing"
        return "; ".join(sentences)
