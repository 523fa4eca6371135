"""A prefiller's scheduler, imitated method by method after SGLang's ``disaggregation/prefill.py``.

What SGLang decides by its model and its memory is drawn or simple here; what it calls of the backend, and when it gives
pages to another request, is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kv_connector.sglang import hooks
from kv_connector.sglang.sender import Sender
from kv_connector.sglang.sglang_api import KVPoll
from sglang_loop.beside_pool import BesidePool
from sglang_loop.late_numbers import LateCopies, have_numbers_come_late
from sglang_loop.network import Network
from sglang_loop.pair_probe import other_computation
from sglang_loop.pools import HEADS, LAYERS, Pool, PrefixCache, Table, page_keys
from sglang_loop.ranks import LAYER_NAMES, AllRanks, EnginePlan, Slots, Stream, open_ranks

if TYPE_CHECKING:
    from sglang_loop.story import Ask


@dataclass(eq=False)
class PrefillRequest:
    """SGLang's ``Req`` on a prefiller."""

    ask: Ask
    table: Table
    senders: AllRanks
    slot: int = -1
    prefix_len: int = 0
    extend_end: int = 0
    start_send: int = 0
    tmp_end: int = 0
    middle_chunks: int = 0
    aborted: bool = False
    ended: bool = False
    beside: dict[int, int] = field(default_factory=dict)
    """Its pages in the second pool."""

    @property
    def tokens(self) -> Sequence[int]:
        return self.ask.prompt


@dataclass(eq=False)
class Batch:
    requests: list[PrefillRequest]
    ends: dict[PrefillRequest, int]
    queued_until: int = 0
    starts: dict[PrefillRequest, int] = field(default_factory=dict)


class PrefillEngine:
    """One start of a prefiller."""

    mode = "prefill"

    def __init__(self, network: Network, plan: EnginePlan, start: int, port: int) -> None:
        self.network, self.plan, self.page_tokens = network, plan, plan.page_tokens
        self.name, self.bootstrap = f"{plan.name}.{start}", f"{plan.server}:8998"
        self.pool, self.beside = Pool(plan.pages, network.report), BesidePool(plan, network.report)
        self.cache = PrefixCache(self.pool, enabled=plan.caches)
        self.stream = Stream()
        pools = self.pool, self.beside
        self.ranks = open_ranks(network, plan, self.mode, self.name, port, pools, self.stream)
        self.slots = Slots(self.ranks, deque(range(plan.slots)))
        self.copies = LateCopies(self.stream, self.name)
        for rank in self.ranks if plan.device else ():
            have_numbers_come_late(rank, self.copies)
        self.arrived: list[Ask] = []
        self.bootstrap_queue: list[PrefillRequest] = []
        self.waiting: list[PrefillRequest] = []
        self.inflight: list[PrefillRequest] = []
        self.chunked: PrefillRequest | None = None
        self.results: deque[Batch] = deque()
        self._last: Batch | None = None
        self._chunked_abort: PrefillRequest | None = None
        self.requests: list[PrefillRequest] = []
        self.dies_in_pass = False
        self.weights = 0
        network.engines.setdefault(self.bootstrap, {})[plan.dp_rank] = self

    # ---- the loops

    def round(self) -> None:
        """``event_loop_normal_disagg_prefill`` or ``event_loop_overlap_disagg_prefill``, once."""
        self._ingest()
        self.waiting += self._pop_bootstrapped()
        self._process_pending_chunked_abort()
        self._resolve_waiting()
        self._process_prefill_chunk()
        batch = self._next_batch()
        if batch is not None:
            self._run_batch(batch)
            self.results.append(batch)
        if self.plan.overlap:
            if self._last is not None:
                self._process_result(self.results.popleft())
        elif batch is not None:
            self._process_result(self.results.popleft())
        self._process_inflight()
        self._last = batch

    def tick(self, share: float) -> bool:
        """The GPU goes on."""
        return self.stream.run(self.stream.done_count + max(1, int(share * len(self.stream.queued))))

    # ---- arrivals and aborts

    def _ingest(self) -> None:
        arrived, self.arrived = self.arrived, []
        for ask in arrived:
            senders = []
            for rank in self.ranks:
                rank.endpoint.next_prompt_digest = ask.named(self.weights)
                rank.endpoint.next_prompt_tokens = len(ask.prompt)
                senders.append(Sender(rank.endpoint, self.bootstrap, ask.room))
                hooks.note_weights(None, None, SimpleNamespace(disagg_kv_sender=senders[-1]))
            request = PrefillRequest(ask, Table(self._keys(ask)), AllRanks(senders))
            self.requests.append(request)
            self.bootstrap_queue.append(request)

    def _keys(self, ask: Ask) -> list[int]:
        return page_keys(ask.prompt, self.page_tokens, self.weights)

    def update(self, weights: int) -> None:
        """``update_weights_from_…``: what was computed in part goes on with the new ones."""
        self.weights = weights
        for request in [each for each in self.requests if not each.ended]:
            request.table.update(self._keys(request.ask))

    def abort(self, ask: Ask) -> None:
        """``Scheduler.abort_request``."""
        if ask in self.arrived:
            self.arrived.remove(ask)
            ask.end(self.mode, "aborted")
        for request in [each for each in self.requests if each.ask is ask and not each.ended]:
            if request is self.chunked:
                self._chunked_abort = request
            if request in self.waiting:
                self.waiting.remove(request)
                self._retire(request, "aborted")
            elif request in self.bootstrap_queue or request in self.inflight:
                request.senders.abort()
            if any(request in batch.requests for batch in self.results):
                request.aborted = True

    def _process_pending_chunked_abort(self) -> None:
        request, self._chunked_abort = self._chunked_abort, None
        if request is None:
            return
        if self.chunked is not request:
            self.abort(request.ask)
            return
        self.chunked = None
        request.aborted = True
        self._retire(request, "aborted")

    def _retire(self, request: PrefillRequest, end: str) -> None:
        """``_retire_aborted_prefill_result`` and ``release_aborted_prefill_waiting_req``: nothing is awaited."""
        if request.ended:
            return
        request.senders.abort()
        self._free(request, end)

    def _free(self, request: PrefillRequest, end: str, whole_pages: int = 0) -> None:
        if request.slot >= 0:
            self._check_metadata(request)
            self.slots.release(request.slot)
            request.slot = -1
        self.cache.release(request.table, whole_pages)
        self.beside.release(request)
        request.ended = True
        request.ask.end(self.mode, end)

    def _check_metadata(self, request: PrefillRequest) -> None:
        """Pages may be read longer, but no metadata that a decoder takes for the sign that it has all pages."""
        names = {sender._outgoing.request for sender in request.senders.of_ranks}
        messengers = [rank.messenger for rank in self.ranks if not rank.messenger.fences_hang]
        for write in self.network.writes:
            read = write.layer < 0 and write.delivery.source in messengers
            if read and write.delivery.prefill.request in names:
                self.network.report("freed metadata that is being read", f"of {request.ask}")

    # ---- the bootstrap queue

    def _pop_bootstrapped(self) -> list[PrefillRequest]:
        for at in range(len(self.ranks)):
            queued = [
                SimpleNamespace(ask=each.ask, disagg_kv_sender=each.senders.of_ranks[at])
                for each in self.bootstrap_queue
            ]
            self.ranks[at].endpoint.page_numbers.look()  # as ``hooks.poll_queued`` has it
            hooks.name_queued(SimpleNamespace(queue=queued, scheduler=self))
        ready, kept = [], []
        for request, poll in [(each, each.senders.poll()) for each in self.bootstrap_queue]:
            if poll == KVPoll.Failed:
                self._fail_bootstrap(request)
            elif poll == KVPoll.WaitingForInput and self._finalize_bootstrap(request):
                ready.append(request)
            elif poll in (KVPoll.Bootstrapping, KVPoll.WaitingForInput):
                kept.append(request)
            else:
                raise RuntimeError(f"Unexpected poll state {poll} in pop_bootstrapped")
        self.bootstrap_queue = kept
        return ready

    def _finalize_bootstrap(self, request: PrefillRequest) -> bool:
        slot = self.slots.alloc(request)
        if slot is None:
            return False
        request.slot = slot
        for sender in request.senders.of_ranks:
            prefix = sender.pop_decode_prefix_len()
            request.start_send = prefix
            sender.init(-(-(len(request.tokens) - prefix) // self.page_tokens), slot)
        return True

    def _fail_bootstrap(self, request: PrefillRequest) -> None:
        request.ask.note(self.mode, request.senders.failure())
        self._free(request, "failed")

    def _resolve_waiting(self) -> None:
        polls = [(each, each.senders.poll()) for each in self.waiting]
        for request, poll in polls:
            if poll == KVPoll.Failed:
                self._fail_bootstrap(request)
        self.waiting = [request for request, poll in polls if poll != KVPoll.Failed]

    # ---- passes

    def _process_prefill_chunk(self) -> None:
        request = self.chunked
        if request is None:
            return
        self.cache.insert(request.table, request.extend_end // self.page_tokens)
        if self.plan.overlap:
            request.tmp_end = min(request.extend_end, len(request.tokens))
        else:
            self._send_chunk(request)

    def _next_batch(self) -> Batch | None:
        """``PrefillAdder``: the prompt that is being computed, then the queue, as far as tokens and pages go."""
        budget, batch = self.plan.chunk_tokens, Batch([], {})
        if self.chunked is not None:
            request, self.chunked = self.chunked, None
            request.prefix_len = request.extend_end
            left = self._add(batch, request, budget)
            if left == budget:
                self.chunked = request
                return None
            budget = left
        while self.waiting and budget >= self.page_tokens and self.chunked is None:
            request = self.waiting[0]
            self.cache.match(request.table, (len(request.tokens) - 1) // self.page_tokens)
            request.prefix_len = request.extend_end = len(request.table.pages) * self.page_tokens
            left = self._add(batch, request, budget)
            if left == budget:
                self.cache.release(request.table)
                break
            self.waiting.pop(0)
            budget = left
        return batch if batch.requests else None

    def _add(self, batch: Batch, request: PrefillRequest, budget: int) -> int:
        end = min(len(request.tokens), request.prefix_len + budget)
        if end < len(request.tokens):
            end -= end % self.page_tokens
        needed = -(-end // self.page_tokens) - len(request.table.pages)
        fits = end > request.prefix_len and self.cache.make_room(needed)
        pages = self.pool.alloc(needed, request) if fits else None
        if pages is None:
            return budget
        request.table.pages += pages
        request.extend_end = end
        batch.requests.append(request)
        batch.starts[request], batch.ends[request] = request.prefix_len, end
        if end < len(request.tokens):
            self.chunked = request
            request.middle_chunks += 1
        return budget - (end - request.prefix_len)

    def _run_batch(self, batch: Batch) -> None:
        """``Scheduler.run_batch`` of every rank, each with the hook of the backend around it."""
        run = lambda *_: self._forward(batch)  # noqa: E731
        for at in range(len(self.ranks)):
            run = self._hooked(batch, at, run)
        run()
        batch.queued_until = self.stream.queued_count
        if self.plan.device:
            self.network.tick(0.5)  # the messengers go on while this thread waits for the earlier pass

    def _hooked(self, batch: Batch, at: int, original: Any) -> Any:
        views = [self._view(request, at, place) for place, request in enumerate(batch.requests)]
        rows = [
            np.repeat(np.array(each.table.pages, np.int64) * self.page_tokens, self.page_tokens)
            for each in batch.requests
        ]
        scheduler = SimpleNamespace(
            disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=self.ranks[at].endpoint),
            weights=self.weights,
            enable_overlap=self.plan.overlap,
            tree_cache=SimpleNamespace(supports_prefix_sharing=lambda: self.plan.caches),
            req_to_token_pool=SimpleNamespace(req_to_token=rows),
            token_to_kv_pool_allocator=SimpleNamespace(translate_kv_indices_for_transfer=lambda row: row),
        )
        of_rank = SimpleNamespace(reqs=views, forward_mode=SimpleNamespace(is_extend=lambda: True))
        return lambda *_: hooks.run_batch(original, scheduler, of_rank)

    def _view(self, request: PrefillRequest, at: int, place: int) -> Any:
        return SimpleNamespace(
            ask=request.ask,
            disagg_kv_sender=request.senders.of_ranks[at],
            origin_input_ids=request.tokens,
            extra_key=None,
            cache_salt=None,
            prefix_len=request.prefix_len,
            extend_end=request.extend_end,
            _compute_max_prefix_len=lambda length: length - 1,
            pending_bootstrap=False,
            kv=SimpleNamespace(req_pool_idx=place),
        )

    def _forward(self, batch: Batch) -> None:
        if self.plan.early:
            for request in batch.requests:
                self._send_cached(request)
        self._look()
        for layer in range(LAYERS):
            work = self._layer(batch, layer)
            if self.plan.device:
                self.stream.queue(work)
            else:
                work()
            for rank in self.ranks:
                if rank.counter is not None:
                    rank.counter.layer_complete(LAYER_NAMES[layer])
            self._look()
            if not self.plan.device:
                self.network.tick(0.3)
            if self.dies_in_pass:
                raise EngineDiedError(self.name)

    def _look(self) -> None:
        """As ``AttentionHooks`` looks."""
        for rank in self.ranks:
            rank.endpoint.page_numbers.look()

    def _layer(self, batch: Batch, layer: int) -> Any:
        """Writes this pass's pages; which they are is known when it is queued."""
        cells: list[tuple[int, Any]] = []
        beside: list[tuple[int, Any]] = []
        for request in batch.requests:
            first, end = batch.starts[request] // self.page_tokens, -(-batch.ends[request] // self.page_tokens)
            keys = self._keys(request.ask)
            for position in range(first, end):
                cells.append((request.table.pages[position], keys[position]))
            beside += self.beside.cells(request, batch.starts[request], batch.ends[request])

        def write() -> None:
            for pool, written in ((self.pool, cells), (self.beside.pool, beside)):
                for page, key in written:
                    computed = other_computation(key) if self.plan.computes_otherwise else key
                    for head in range(HEADS):
                        pool.kv[page, layer, head] = (computed, layer, head)

        return write

    # ---- sends

    def _send_cached(self, request: PrefillRequest) -> None:
        """``maybe_send_cached_prefix_chunk``."""
        end = request.prefix_len
        if end <= request.start_send or end % self.page_tokens:
            return
        if self.plan.overlap:
            event = self.stream.event()
            for sender in request.senders.of_ranks:
                sender._early_send_wait_event = event
        self._send_chunk(request, end=end)

    def _send_chunk(self, request: PrefillRequest, *, last: bool = False, end: int | None = None) -> None:
        end = min(request.extend_end, len(request.tokens)) if end is None else end
        if not last:
            end -= end % self.page_tokens
        if end < request.start_send:
            return
        if last:
            for rank in self.ranks:
                rank.memory.rows[request.slot] = (request.ask.room, request.ask.first_token)
        first = request.start_send // self.page_tokens
        numbers = request.table.pages[first : -(-end // self.page_tokens)]
        pages: Any = np.array(numbers, dtype=np.int32)
        given = self.beside.given(request) if last else None
        for sender in request.senders.of_ranks:
            if sender.should_send_kv_chunk(len(pages), last):
                later = {}
                if sender.supports_host_tensor_indices:
                    pages, later["indices_event"] = self.copies.copied(numbers)
                sender.send(pages, given, num_kv_tokens=end - request.start_send, **later)
        request.start_send = end

    def _process_result(self, batch: Batch) -> None:
        """``process_batch_result_disagg_prefill``, which waits for the pass."""
        self.stream.run(batch.queued_until)
        for request in batch.requests:
            self.beside.leave(request, batch.ends[request])
            if request.middle_chunks <= 0:
                if request.aborted:
                    self._retire(request, "aborted")
                    continue
                self.cache.insert(request.table, len(request.tokens) // self.page_tokens)
                self.inflight.append(request)
                self._send_chunk(request, last=True)
                continue
            request.middle_chunks -= 1
            if request.aborted:
                still = self.chunked is request or request.extend_end >= len(request.tokens)
                if not still:
                    self._retire(request, "aborted")
            elif self.plan.overlap:
                self._send_chunk(request, end=request.tmp_end)

    def _process_inflight(self) -> None:
        """``process_disagg_prefill_inflight_queue``."""
        polls = [(each, each.senders.poll()) for each in self.inflight]
        self.inflight = [each for each, poll in polls if poll not in (KVPoll.Success, KVPoll.Failed)]
        for request, poll in polls:
            whole = len(request.tokens) // self.page_tokens
            if poll == KVPoll.Success:
                self._free(request, "success", whole)
                request.senders.clear()
            elif poll == KVPoll.Failed:
                request.ask.note(self.mode, request.senders.failure())
                self._free(request, "failed", whole)
            elif poll not in (KVPoll.WaitingForInput, KVPoll.Transferring):
                raise RuntimeError(f"Unexpected poll state {poll} in inflight queue")

    # ---- for the checker

    def open_requests(self) -> list[Ask]:
        return [*self.arrived, *(each.ask for each in self.requests if not each.ended)]

    def held(self) -> list[str]:
        """What is still held although all requests have ended."""
        self.stream.run(self.stream.queued_count)
        found = [f"{name} at {count}" for rank in self.ranks for name, count in rank.endpoint.tables().items()]
        found += [str(rank.messenger.leak_check().held) for rank in self.ranks if not rank.messenger.leak_check().clean]
        if self.cache.locked():
            found.append(f"{self.cache.locked()} locks of cached pages")
        if not self.cache.make_room(self.plan.pages):
            found.append(f"{self.pool.page_count - self.pool.free_count} pages")
        if len(self.slots.free) != self.plan.slots:
            found.append(f"{self.plan.slots - len(self.slots.free)} metadata slots")
        found += self.beside.held()
        return [f"{self.name} holds {each}" for each in found]


class EngineDiedError(Exception):
    """The engine's process ends."""
