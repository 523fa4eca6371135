"""Plans passes as vLLM does: chunked prefill, a prefix cache, preemption, requests that wait for KV from elsewhere."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from torch_engine.block_pool import Block, BlockPool, Chain, chains_of
from torch_engine.plan import EnginePlan


class Status(enum.Enum):
    """vLLM's names."""

    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_LENGTH_CAPPED = 5
    FINISHED_ABORTED = 6
    FINISHED_ERROR = 7


@dataclass(eq=False)
class Request:
    """As much of vLLM's as the connector reads, and what the scheduler keeps."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    kv_transfer_params: Any
    output: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    blocks: list[Block] = field(default_factory=list)
    has_run: bool = False
    cached_tokens: int = 0
    """What its prefix cache gave."""
    held: bool = False
    """Ended, and the connector keeps its blocks."""
    cache_salt: str | None = None
    priority: int = 0
    skip_reading_prefix_cache: bool = False

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_token_ids) + len(self.output)

    @property
    def tokens(self) -> list[int]:
        return self.prompt_token_ids + self.output

    def get_skip_reading_prefix_cache(self) -> bool:
        return self.skip_reading_prefix_cache


@dataclass
class Planned:
    """vLLM's SchedulerOutput, as much of it as the connector and the runner read."""

    scheduled_new_reqs: list[Any] = field(default_factory=list)
    scheduled_cached_reqs: Any = None
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    total_num_scheduled_tokens: int = 0
    scheduled_spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    finished_req_ids: set[str] = field(default_factory=set)
    preempted_req_ids: set[str] = field(default_factory=set)
    kv_connector_metadata: Any = None


class Scheduler:
    """The engine's thread only. What it does not do: priorities, several groups, speculation, asynchronous steps."""

    def __init__(self, plan: EnginePlan, connector: Any) -> None:
        self._plan = plan
        self._connector = connector
        self.pool = BlockPool(plan.blocks)
        self.requests: dict[str, Request] = {}
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._received: set[str] = set()
        self._preempted: set[str] = set()
        self._finished: set[str] = set()
        self.ended: list[tuple[Request, Any]] = []
        """Requests that have ended since this was last taken, and what their clients are told of the KV."""
        if connector is not None:
            connector.bind_kv_cache_manager(SimpleNamespace(block_pool=self.pool))

    # ---- requests come and go

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self._waiting.append(request)
        if self._connector is not None:
            self._connector.on_new_request(request)

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.status.name.startswith("FINISHED"):
            self._finish(request, Status.FINISHED_ABORTED)

    def has_work(self) -> bool:
        return bool(self.requests) or (self._connector is not None and self._connector.has_pending_push_work())

    def _finish(self, request: Request, status: Status) -> None:
        waits = request.status == Status.WAITING_FOR_REMOTE_KVS and request.request_id not in self._received
        self._received.discard(request.request_id)
        for queue in (self._waiting, self._running):
            if request in queue:
                queue.remove(request)
        request.status = status
        held, params = False, None
        if self._connector is not None:
            held, params = self._connector.request_finished_all_groups(request, (_ids(request.blocks),))
        self._finished.add(request.request_id)
        self.ended.append((request, params))
        request.held = waits or held
        if not request.held:
            self._free(request)

    def _free(self, request: Request) -> None:
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks = []
        del self.requests[request.request_id]

    # ---- a step

    def plan_step(self) -> Planned:
        planned = Planned()
        budget = self._plan.chunk_tokens
        continued: list[tuple[Request, list[Block], bool]] = []
        for request in list(self._running):
            if budget == 0:
                break
            if request not in self._running:
                continue  # preempted meanwhile
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            if (added := self._grow(request, request.num_computed_tokens + count, planned)) is None:
                continue
            budget -= count
            planned.num_scheduled_tokens[request.request_id] = count
            continued.append((request, added, False))
        new: list[Request] = []
        for request in list(self._waiting):
            if budget == 0 or self._preempted or len(self._running) == self._plan.requests_max:
                break
            if not self._admit(request, budget):
                continue
            count = min(request.num_tokens - request.num_computed_tokens, budget)
            budget -= count
            planned.num_scheduled_tokens[request.request_id] = count
            self._waiting.remove(request)
            self._running.append(request)
            request.status = Status.RUNNING
            if request.has_run:
                continued.append((request, request.blocks, True))
            else:
                new.append(request)
            request.has_run = True
        self._notify(planned, new, [each for each in continued if each[0].request_id in planned.num_scheduled_tokens])
        return planned

    def _grow(self, request: Request, tokens: int, planned: Planned) -> list[Block] | None:
        """More blocks; others are preempted for them, the last ones first. None when it was preempted itself."""
        missing = -(-tokens // self._plan.block_tokens) - len(request.blocks)
        while missing > self.pool.free_count:
            last = self._running[-1]
            self._preempt(last)
            planned.num_scheduled_tokens.pop(last.request_id, None)
            if last is request:
                return None
        return self._extend(request, tokens)

    def _extend(self, request: Request, tokens: int) -> list[Block]:
        added = self.pool.take(max(0, -(-tokens // self._plan.block_tokens) - len(request.blocks)))
        request.blocks += added
        self._name(request, tokens)
        return added

    def _name(self, request: Request, tokens: int) -> None:
        full = min(tokens, request.num_tokens) // self._plan.block_tokens
        self.pool.name(request.blocks[:full], self._chains(request)[:full])

    def _chains(self, request: Request) -> list[Chain]:
        return chains_of(request.tokens, self._plan.block_tokens)

    def _preempt(self, request: Request) -> None:
        self._running.remove(request)
        self.pool.free_blocks(reversed(request.blocks))
        request.blocks = []
        request.status, request.num_computed_tokens = Status.PREEMPTED, 0
        self._preempted.add(request.request_id)
        self._waiting.insert(0, request)

    def _admit(self, request: Request, budget: int) -> bool:
        """Whether it can run in this step; gives it its blocks."""
        if request.status == Status.WAITING_FOR_REMOTE_KVS:
            return self._take_in(request, budget)
        hits = [] if request.skip_reading_prefix_cache else self.pool.find(self._chains(request))
        hits = hits[: (request.num_tokens - 1) // self._plan.block_tokens]
        computed = len(hits) * self._plan.block_tokens
        external, loads = 0, False
        if self._connector is not None:
            external, loads = self._connector.get_num_new_matched_tokens(request, computed)
            if external is None:
                return False
        upto = computed + external
        end = upto if loads else min(upto + budget, request.num_tokens)
        unused_hits = sum(block.references == 0 for block in hits)
        missing = -(-end // self._plan.block_tokens) - len(hits)
        if missing > self.pool.free_count - unused_hits:
            return False
        self.pool.touch(hits)
        request.blocks = list(hits)
        request.cached_tokens = max(request.cached_tokens, computed)
        request.num_computed_tokens = upto
        if loads:
            request.blocks += self.pool.take(missing)
        else:
            self._extend(request, end)
        if self._connector is not None:
            given = SimpleNamespace(get_block_ids=lambda: (_ids(request.blocks),))
            self._connector.update_state_after_alloc(request, given, external)
        if loads:
            request.status = Status.WAITING_FOR_REMOTE_KVS
        return not loads

    def _take_in(self, request: Request, budget: int) -> bool:
        """It has its KV, if all has come; the last token is computed again."""
        if request.request_id not in self._received:
            return False
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        end = min(computed + budget, request.num_tokens)
        if -(-end // self._plan.block_tokens) - len(request.blocks) > self.pool.free_count:
            return False
        self._received.discard(request.request_id)
        request.status = Status.WAITING
        self._name(request, request.num_computed_tokens)
        request.num_computed_tokens = computed
        self._extend(request, end)
        if self._connector is not None:
            given = SimpleNamespace(get_block_ids=lambda: (_ids(request.blocks),))
            self._connector.update_state_after_alloc(request, given, 0)
        return True

    def _notify(
        self, planned: Planned, new: Sequence[Request], continued: Sequence[tuple[Request, list[Block], bool]]
    ) -> None:
        planned.scheduled_new_reqs = [
            SimpleNamespace(
                req_id=each.request_id, block_ids=(_ids(each.blocks),), num_computed_tokens=each.num_computed_tokens
            )
            for each in new
        ]
        planned.scheduled_cached_reqs = SimpleNamespace(
            req_ids=[each.request_id for each, _, _ in continued],
            resumed_req_ids={each.request_id for each, _, resumed in continued if resumed},
            new_block_ids=[(_ids(blocks),) if blocks else None for _, blocks, _ in continued],
            num_computed_tokens=[each.num_computed_tokens for each, _, _ in continued],
        )
        planned.total_num_scheduled_tokens = sum(planned.num_scheduled_tokens.values())
        planned.finished_req_ids, self._finished = self._finished, set()
        planned.preempted_req_ids, self._preempted = self._preempted, set()
        if self._connector is not None:
            planned.kv_connector_metadata = self._connector.build_connector_meta(planned)

    # ---- what came of it

    def update(self, planned: Planned, sampled: dict[str, int], reports: Any) -> None:
        for request_id, count in planned.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None or request.status != Status.RUNNING:
                continue
            request.num_computed_tokens += count
            if request.num_computed_tokens == request.num_tokens:
                request.output.append(sampled[request_id])
                if len(request.output) == request.max_tokens:
                    self._finish(request, Status.FINISHED_LENGTH_CAPPED)
        if reports is None:
            return
        for request_id in reports.failed_recving:
            if self._waits(request_id):
                self._finish(self.requests[request_id], Status.FINISHED_ERROR)
        self._connector.update_connector_output(reports)
        for request_id in reports.finished_recving or ():
            assert request_id in self.requests, f"{request_id} was reported as received and is not known"
            if self._waits(request_id):
                self._received.add(request_id)
            else:
                self._free(self.requests[request_id])
        for request_id in reports.finished_sending or ():
            assert request_id in self.requests, f"{request_id} was reported as sent and is not known"
            self._free(self.requests[request_id])

    def _waits(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        return request is not None and request.status == Status.WAITING_FOR_REMOTE_KVS


def _ids(blocks: Sequence[Block]) -> list[int]:
    return [block.block_id for block in blocks]
