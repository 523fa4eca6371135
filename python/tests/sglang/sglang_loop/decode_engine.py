"""A decoder's scheduler, imitated method by method after SGLang's ``disaggregation/decode.py``."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kv_connector.sglang import pair_check
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.sglang_api import KVPoll
from sglang_loop.beside_pool import BesidePool
from sglang_loop.network import Network
from sglang_loop.pair_probe import PairProbe
from sglang_loop.pools import Pool, PrefixCache, Table, page_keys
from sglang_loop.ranks import AllRanks, EnginePlan, Slots, Stream, open_ranks

if TYPE_CHECKING:
    from sglang_loop.story import Ask

ENSURE_RETRIES_MAX = 15
ENSURE_INTERVAL_SECONDS = 1.0


@dataclass(eq=False)
class DecodeRequest:
    """SGLang's ``DecodeRequest`` with its ``Req``."""

    ask: Ask
    table: Table
    receivers: AllRanks
    slot: int = -1
    ready: bool = False
    """Whether its prefiller is known."""
    failed: bool = False
    rounds_left: int = 0
    beside: dict[int, int] = field(default_factory=dict)
    """Its pages in the second pool."""
    refused: list[str] = field(default_factory=list)
    """What each rank answers its client, where its prefiller was found to compute another KV."""
    skip_radix_cache_insert: bool = False
    """As SGLang's request has it."""
    ended: bool = False
    later_keys: list[list[int]] = field(default_factory=list)
    """Those of the weights that the engine was given since the request has its pages: both may be sent."""

    @property
    def tokens(self) -> Sequence[int]:
        return self.ask.prompt


class DecodeEngine:
    """One start of a decoder."""

    mode = "decode"

    def __init__(self, network: Network, plan: EnginePlan, start: int, port: int) -> None:
        self.network, self.plan, self.page_tokens = network, plan, plan.page_tokens
        self.name = f"{plan.name}.{start}"
        self.pool, self.beside = Pool(plan.pages, network.report), BesidePool(plan, network.report)
        self.cache = PrefixCache(self.pool, enabled=plan.caches)
        self.ranks = open_ranks(network, plan, self.mode, self.name, port, (self.pool, self.beside), Stream())
        self._probe = PairProbe(self.ranks, self.page_tokens)
        self.slots = Slots(self.ranks, deque(range(plan.slots)))
        self.arrived: list[Ask] = []
        self.queue: list[DecodeRequest] = []
        self._pending: list[list[DecodeRequest]] = [[] for _rank in self.ranks]
        """Of each rank: those whose prefiller it does not know."""
        self.transfers: list[DecodeRequest] = []
        self.deferred: list[DecodeRequest] = []
        self.waiting: list[DecodeRequest] = []
        self.running: list[DecodeRequest] = []
        self.requests: list[DecodeRequest] = []
        self._tried: dict[tuple[int, str], tuple[int, float]] = {}
        self.weights = 0

    def round(self) -> None:
        """``event_loop_overlap_disagg_decode``, once."""
        self._ingest()
        for request in [each for each in self.waiting if each.ask.leaves_with_kv]:
            self.abort(request.ask)
        self._resolve_deferred()
        self.transfers += self._pop_preallocated()
        self.waiting += self._pop_transferred()
        self._decode()

    def tick(self, share: float) -> bool:  # noqa: ARG002 - a decoder's passes write nothing that is looked at
        return False

    # ---- arrivals and aborts

    def _ingest(self) -> None:
        arrived, self.arrived = self.arrived, []
        for ask in arrived:
            receivers = [Receiver(rank.endpoint, ask.bootstrap, ask.room) for rank in self.ranks]
            for receiver in receivers:
                receiver.digest_now = partial(self._named, ask)
                receiver.prompt_digest, receiver.prompt_tokens = receiver.digest_now(), len(ask.prompt)
            request = DecodeRequest(ask, Table(self._keys(ask)), AllRanks(receivers))
            self.requests.append(request)
            self.queue.append(request)
            for rank, pending, receiver in zip(self.ranks, self._pending, receivers, strict=True):
                if ask.bootstrap in rank.endpoint.prefill_info_table:
                    receiver.init(ask.dp_rank)
                else:
                    pending.append(request)

    def _named(self, ask: Ask) -> str:
        return ask.named(self.weights)

    def _keys(self, ask: Ask) -> list[int]:
        return page_keys(ask.prompt, self.page_tokens, self.weights)

    def update(self, weights: int) -> None:
        """``update_weights_from_…``: a request that has its pages may have KV of the weights before."""
        self.weights = weights
        for request in [each for each in self.requests if not each.ended]:
            if request.table.pages:
                request.later_keys.append(self._keys(request.ask))
            request.table.update(self._keys(request.ask))

    def abort(self, ask: Ask, *, on_another_thread: bool = False) -> None:
        """``Scheduler.abort_request``; on another thread after a recompute has failed."""
        if ask in self.arrived:
            self.arrived.remove(ask)
            ask.end(self.mode, "aborted")
        for request in [each for each in self.requests if each.ask is ask and not each.ended]:
            if request in self.queue or request in self.transfers:
                self._abort(request, on_another_thread)
            elif request in self.waiting:
                self.waiting.remove(request)
                kept = 0 if request.skip_radix_cache_insert else len(ask.prompt) // self.page_tokens
                self._free(request, "aborted", whole_pages=kept)
            elif request in self.running:
                request.rounds_left = 0

    def _abort(self, request: DecodeRequest, on_another_thread: bool) -> None:
        for rank, receiver in zip(self.ranks, request.receivers.of_ranks, strict=True):
            if on_another_thread:
                rank.endpoint._fail_prefill_recompute(receiver, "its recompute failed")
            else:
                receiver.abort()
        request.ask.note(self.mode, "the client left")
        request.ask.declined(self.network.now)

    def _free(self, request: DecodeRequest, end: str, whole_pages: int = 0) -> None:
        self.cache.release(request.table, whole_pages)
        self.beside.release(request)
        if request.slot >= 0:
            self.slots.release(request.slot)
            request.slot = -1
        request.ended = True
        request.ask.end(self.mode, end)

    # ---- the queue for pages

    def _resolve_pending(self, at: int) -> None:
        """``_resolve_pending_reqs`` of one rank."""
        waiting, self._pending[at] = self._pending[at], []
        by_address: dict[str, list[DecodeRequest]] = {}
        for request in waiting:
            by_address.setdefault(request.ask.bootstrap, []).append(request)
        for address, requests in by_address.items():
            if self._ensure_known(at, address, requests):
                for request in requests:
                    request.receivers.of_ranks[at].init(request.ask.dp_rank)

    def _ensure_known(self, at: int, address: str, requests: Sequence[DecodeRequest]) -> bool:
        """``_ensure_prefill_info``: asks once a second, and gives up."""
        key, now = (at, address), self.network.now
        count, last = self._tried.get(key, (0, float("-inf")))
        if now - last < ENSURE_INTERVAL_SECONDS:
            self._pending[at] += requests
            return False
        self._tried[key] = (count + 1, now)
        if self.ranks[at].endpoint.try_ensure_parallel_info(address):
            del self._tried[key]
            return True
        if count + 1 >= ENSURE_RETRIES_MAX:
            del self._tried[key]
            for request in requests:
                request.receivers.of_ranks[at].abort()
        else:
            self._pending[at] += requests
        return False

    def _pop_preallocated(self) -> list[DecodeRequest]:
        for at, rank in enumerate(self.ranks):
            rank.endpoint.prefillers.late_declines.poll()  # as ``hooks.poll_pulls`` does before it
            self._resolve_pending(at)
        for request, poll in [(each, each.receivers.poll()) for each in self.queue]:
            if poll == KVPoll.Failed:
                request.ask.note(self.mode, request.receivers.failure())
                request.failed = True
            elif poll == KVPoll.WaitingForInput:
                request.ready = True
            elif poll != KVPoll.Bootstrapping:
                raise ValueError(f"Unexpected poll case: {poll}")
        for request in [each for each in self.queue if each.failed]:
            request.receivers.clear()
            self.queue.remove(request)
            self._pending = [[each for each in of_rank if each is not request] for of_rank in self._pending]
            self._free(request, "failed")
        allocated = []
        for request in list(self.queue):
            if not request.ready:
                continue
            if not self.slots.free or not self._pre_alloc(request):
                break
            self.queue.remove(request)
            allocated.append(request)
        return allocated

    def _pre_alloc(self, request: DecodeRequest) -> bool:
        count = len(request.table.keys)
        self.cache.match(request.table, (len(request.tokens) - 1) // self.page_tokens)
        prefix = len(request.table.pages)
        if not self.cache.make_room(count - prefix):
            self.cache.release(request.table)
            return False
        pages = self.pool.alloc(count - prefix, request)
        assert pages is not None
        request.table.pages += pages
        slot = self.slots.alloc(request)
        assert slot is not None
        request.slot = slot
        self.beside.take(request, self.beside.needed(len(request.tokens)))
        given = self.beside.given(request)
        pair_check.bind(request, request.receivers.of_ranks[0].arrival)
        for receiver in request.receivers.of_ranks:
            receiver.prompt_digest = self._named(request.ask)  # as ``hooks.name_receiver`` does before it
            receiver.send_metadata(
                np.array(pages, dtype=np.int32), slot, given, decode_prefix_len=prefix * self.page_tokens
            )
        return True

    # ---- transfers

    def _poll_with_metadata_gate(self, request: DecodeRequest) -> int:
        polls = []
        for rank, receiver in zip(self.ranks, request.receivers.of_ranks, strict=True):
            poll = receiver.poll()
            written = rank.memory.rows.get(request.slot) is not None
            polls.append(KVPoll.Transferring if poll == KVPoll.Success and not written else poll)
        return min(polls)

    def _pop_transferred(self) -> list[DecodeRequest]:
        transferred = []
        for request, poll in [(each, self._poll_with_metadata_gate(each)) for each in self.transfers]:
            if poll == KVPoll.Failed:
                self.transfers.remove(request)
                self._fail(request)
            elif poll == KVPoll.Success:
                self.transfers.remove(request)
                self._commit(request)
                transferred.append(request)
        return transferred

    def _fail(self, request: DecodeRequest) -> None:
        request.ask.note(self.mode, request.receivers.failure())
        holds = []
        for receiver in request.receivers.of_ranks:
            if not receiver.abort_notified:
                receiver.ensure_abort_notified(force_arm=True)
            holds.append(receiver.abort_notified)
        if any(holds):
            self.deferred.append(request)
        else:
            self._free(request, "failed")
            request.receivers.clear()

    def _resolve_deferred(self) -> None:
        for request in list(self.deferred):
            if all(rank.endpoint.is_abort_release_safe(request.ask.room, 1) for rank in self.ranks):
                self.deferred.remove(request)
                self._free(request, "failed")
                request.receivers.clear()

    def _commit(self, request: DecodeRequest) -> None:
        """``_commit_transfer_to_req``."""
        for rank in self.ranks:
            row = rank.memory.rows.get(request.slot)
            if row != (request.ask.room, request.ask.first_token):
                self.network.report("wrong metadata", f"{row} for {request.ask}")
        request.receivers.clear()
        self.slots.release(request.slot)
        request.slot = -1
        request.rounds_left = 1 + self.network.drawn.randint(0, self.plan.running_rounds)

    def _check_pages(self, request: DecodeRequest, kind: str) -> None:
        right = list(zip(request.table.keys, *request.later_keys, strict=True))
        pairs = zip(request.table.pages, right, strict=True)
        wrong = [at for at, (page, keys) in enumerate(pairs) if not any(self.pool.holds(page, key) for key in keys)]
        if wrong:
            held = self.pool.kv.get((request.table.pages[wrong[0]], 0, 0))
            self.network.report(kind, f"positions {wrong} of {request.ask}, such as {held}")
        if beside := self.beside.wrong(request):
            self.network.report(kind, f"positions {beside} of {request.ask} in the second pool")

    def _take_in(self) -> None:
        """``get_new_prebuilt_batch``: what is used from here on must be right."""
        room = self.plan.running_max - len(self.running)
        arrived, self.waiting = self.waiting[:room], self.waiting[room:]
        refused = self._probe.refused(arrived) if arrived and self.plan.check != "off" else {}
        for request in arrived:
            pair_check._taken(request)
            if request in refused:
                request.ask.note(self.mode, refused[request])
                self._free(request, "failed")
            else:
                self._check_pages(request, "wrong KV")
                self.running.append(request)

    def _decode(self) -> None:
        self._take_in()
        for request in list(self.running):
            request.rounds_left -= 1
            if request.rounds_left < 0:
                self._check_pages(request, "KV that changed after its arrival")
                self.running.remove(request)
                self._free(request, "success", whole_pages=len(request.tokens) // self.page_tokens)

    # ---- for the checker

    def open_requests(self) -> list[Ask]:
        return [*self.arrived, *(each.ask for each in self.requests if not each.ended)]

    def held(self) -> list[str]:
        """What is still held although all requests have ended."""
        found = [f"{name} at {count}" for rank in self.ranks for name, count in rank.endpoint.tables().items()]
        found += [str(rank.messenger.leak_check().held) for rank in self.ranks if not rank.messenger.leak_check().clean]
        if self.cache.locked():
            found.append(f"{self.cache.locked()} locks of cached pages")
        if wrong := self.cache.wrong_pages():
            found.append(f"wrong KV in cached pages {wrong}")
        if not self.cache.make_room(self.plan.pages):
            found.append(f"{self.pool.page_count - self.pool.free_count} pages")
        if len(self.slots.free) != self.plan.slots:
            found.append(f"{self.plan.slots - len(self.slots.free)} metadata slots")
        found += self.beside.held()
        return [f"{self.name} holds {each}" for each in found]
