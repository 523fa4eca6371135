"""The simulated engine with its steps cut where simulated time passes; a JVM hosts it and is its world.

The connector is the real one, both halves, and speaks to the messenger as in production: JSON commands out, JSON events
in. What Java calls is at the end of the file. One thread, one world at a time; everything random comes from the seed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import random
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Protocol

import hosted_mutants
import release
from by_name import RequestsByName, as_sent
from simulated_engine import SimulatedEngine, pickled, remote_decode, remote_prefill
from simulated_engine import Status as RequestStatus
from simulated_requests import SimulatedRequest

from kv_connector import Event, LeakCheck, Opened, Options, Stats
from kv_connector.runtime.facade import decode_event
from kv_connector.vllm.empty_steps import EmptySteps

RELEASE = "0.32.0"
CONTROL_PORT = 1
OUTPUT_TOKENS_MAX = 3


class Host(Protocol):
    """``PythonHost`` in Java."""

    def submit(self, commands: str) -> None: ...
    def poll(self) -> str: ...
    def fence(self, requests: list[str]) -> bool: ...
    def layerCounterAddress(self) -> int: ...  # noqa: N802
    def nowSeconds(self) -> float: ...  # noqa: N802
    def fetchLimitSeconds(self) -> float: ...  # noqa: N802
    def freePages(self) -> int: ...  # noqa: N802
    def takePages(self, count: int) -> Sequence[int]: ...  # noqa: N802
    def givePagesBack(self, pages: list[int], readable: bool) -> None: ...  # noqa: N802
    def stepBegins(self) -> None: ...  # noqa: N802
    def cached(self, transfer: str, pages: list[int], tokens: int) -> None: ...
    def share(self, request: str, transfer: str, pages: list[int], first_token: int, end_token: int) -> None: ...
    def served(self, request: str, transfer: str, pages: list[int], prompt_tokens: int) -> None: ...
    def log(self, level: str, message: str, exception: str | None) -> None: ...
    def note(self, kind: str, detail: str) -> None: ...


class NotFencedYet(BaseException):
    """Ends a call of the connector that would block; no ``except Exception`` holds it up. The call is made again."""


class ForwardError(Exception):
    """The forward pass failed."""


class HostedMessenger:
    """The messenger in the hosting JVM."""

    def __init__(self, host: Host, engine_id: str, incarnation: str, control_host: str) -> None:
        self._host = host
        self.by_name = RequestsByName()
        self.opened = Opened(
            1, engine_id, incarnation, control_host, CONTROL_PORT, control_host, 0, host.layerCounterAddress()
        )

    def submit(self, commands: Sequence[Any]) -> None:
        self._host.submit(json.dumps({"commands": [self.by_name.command(as_sent(command)) for command in commands]}))

    def poll(self) -> list[Event]:
        answer = self._host.poll()
        return [self.by_name.event(decode_event(event)) for event in json.loads(answer)["events"]] if answer else []

    def wait(self, limit_seconds: float) -> None:
        raise AssertionError(
            f"{limit_seconds} s are waited for within a step, whose time passes in the world that hosts it"
        )

    def stats(self) -> Stats:
        return Stats(counters={}, gauges={})

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:  # noqa: ARG002
        if not self._host.fence([self.by_name.name(request) for request in requests]):
            raise NotFencedYet
        return list(requests)

    def leak_check(self) -> LeakCheck:
        return LeakCheck(clean=True, held={})

    def close(self, why: str = "") -> None:  # noqa: ARG002
        raise AssertionError("the connector gave its messenger up")


class HostedBlockPool:
    """References to pages of the hosting world: those of the scheduler, and those that the connector takes."""

    def __init__(self, block_count: int, host: Host, scheduling: Callable[[], bool]) -> None:
        self.blocks = range(block_count)
        self._host = host
        self._scheduling = scheduling
        self._references = [0] * block_count

    def take(self, count: int) -> list[int]:
        taken = [int(page) for page in self._host.takePages(count)] if count > 0 else []
        for block in taken:
            assert self._references[block] == 0, "a page was taken that is in use"
            self._references[block] = 1
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert self._references[block] > 0, "a block is touched that may have been taken meanwhile"
            self._references[block] += 1

    def free_blocks(self, blocks: Iterable[int]) -> None:
        given_back = []
        for block in blocks:
            self._references[block] -= 1
            assert self._references[block] >= 0
            if self._references[block] == 0:
                given_back.append(block)
        if given_back:
            self._host.givePagesBack(given_back, self._scheduling())


class HostedEngine(SimulatedEngine):
    """A prefiller or a decoder of the simulated world."""

    def __init__(
        self,
        host: Host,
        name: str,
        incarnation: str,
        block_tokens: int,
        block_count: int,
        layers: Sequence[str],
        seed: int,
    ) -> None:
        self.host = host
        self.name = name
        self.incarnation = incarnation
        self.random = random.Random(seed)
        self.transfers: dict[str, str] = {}
        self._requests_made = 0
        self._to_preempt: list[str] = []
        self._scheduling = False
        self._planned: Any = None
        """The step between its begin and its end."""
        self._meta: Any = None
        self._fills: list[tuple[str, list[int], int]] = []
        """What was found in the prefix cache: transfer, blocks, tokens."""
        self._shares: list[tuple[str, str, list[int], int, int]] = []
        """What the planned forward pass computes: request, transfer, blocks, first and end token."""
        self._freed_in_step: list[int] = []
        super().__init__(
            _world().release,
            _world().role_of(name),
            block_count=block_count,
            page_tokens=block_tokens,
            block_tokens=block_tokens,
            layers=layers,
            recompute=self.random.random() < 0.5,
            legacy_results=self.random.random() < 0.3,
            model_tokens_max=block_count // 2 * block_tokens,
            extra={"fetch_limit_seconds": host.fetchLimitSeconds()},
        )
        self.gate = self.scheduler._half._gate
        self.gate._now_seconds = lambda: float(host.nowSeconds())
        half = self.worker._worker
        half._now_seconds = half._prefills._now_seconds = self.gate._now_seconds
        # A step's time passes in the world that hosts it, between its calls; a wait within a call would be real.
        self.worker._worker._empty_steps = EmptySteps(lambda: 0.0)

    def _open_messenger(self, options: Options, geometry: Any, *, layer_counter_lag: int) -> Any:  # noqa: ARG002
        self.hosted = HostedMessenger(self.host, self.name, self.incarnation, self.name)
        return self.hosted

    # ---- requests

    def prefill(self, transfer: str, prompt_tokens: int) -> str:
        request, named = self._new_id(transfer)
        self._add(request, transfer, prompt_tokens, remote_decode(**named))
        return request

    def decode(self, transfer: str, prefiller: str, prompt_tokens: int, decoder_first: bool, garbled: bool) -> str:
        request, named = self._new_id(transfer)
        answer = _world().answers.get(transfer)
        if garbled:
            params = remote_prefill({}, remote_host=prefiller, remote_port=str(CONTROL_PORT), **named)
        elif decoder_first:
            params = {"do_remote_prefill": True, "prefiller": f"{prefiller}:{CONTROL_PORT}", "transfer_id": transfer}
        elif answer is not None and self.random.random() < 0.5:
            params = remote_prefill(answer)
        else:
            params = remote_prefill({"remote_host": prefiller, "remote_port": CONTROL_PORT}, **named)
        self._add(request, transfer, prompt_tokens, params)
        return request

    def _new_id(self, transfer: str) -> tuple[str, dict[str, str]]:
        """A request id as vLLM makes it, and the transfer's id unless the request's is to say it."""
        self._requests_made += 1
        return f"{transfer}-{self._requests_made:08x}", {"transfer_id": transfer} if self.random.random() < 0.5 else {}

    def _add(self, request: str, transfer: str, prompt_tokens: int, params: dict[str, Any]) -> None:
        cached_blocks = (prompt_tokens - 1) // self.block_tokens
        cached = self.random.randint(0, cached_blocks) * self.block_tokens if self.random.random() < 0.3 else 0
        self.transfers[request] = transfer
        self.add(request, prompt_tokens, params, max_tokens=self.random.randint(1, OUTPUT_TOKENS_MAX), cached=cached)

    def abort(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request is not None and not request.is_finished:
            self.host.note("abort", f"{request_id} {request.status.name}")
            self._finish(request, RequestStatus.FINISHED_ABORTED)

    def preempt_soon(self, request_id: str) -> None:
        """Preempts it, and sometimes all that run, when the next step is planned."""
        running = [request.request_id for request in self.running]
        self._to_preempt += running if self.random.random() < 0.25 else [request_id]

    # ---- a step, in the parts between which time passes

    def begin(self) -> str:
        self.chunk_tokens = self.random.randint(1, 4 * self.block_tokens + 2)
        self._scheduling = True
        for request_id in dict.fromkeys(self._to_preempt):
            self._preempt(request_id)
        self._to_preempt.clear()
        self._planned = self._schedule()
        self._scheduling = False
        self._planned.kv_connector_metadata = self.scheduler.build_connector_meta(self._planned)
        self._meta = pickled(self._planned.kv_connector_metadata)
        self.hosted.by_name.learn(self._meta)
        self._shares = [self._share(*scheduled) for scheduled in self._planned.num_scheduled_tokens.items()]
        return self.resume()

    def resume(self) -> str:
        """Goes on when what was preempted is fenced."""
        try:
            self.worker.handle_preemptions(self._meta)
        except NotFencedYet:
            return "fencing"
        self.host.stepBegins()
        for fill in self._fills:
            self.host.cached(*fill)
        self._fills.clear()
        for share in self._shares:
            self.host.share(*share)
        self.worker.bind_connector_metadata(self._meta)
        return "running" if self._shares else "empty"

    def layer(self, name: str) -> None:
        self._hook(name)

    def end(self, failed: bool) -> str:
        output, self._planned = self._planned, None
        free_before = self.host.freePages()
        try:
            try:
                if failed:
                    raise ForwardError
            finally:
                self._end_forward()
        except ForwardError:
            for request_id in output.num_scheduled_tokens:
                request = self.requests.get(request_id)
                if request is not None and not request.is_finished:
                    self._finish(request, RequestStatus.FINISHED_ERROR)
        results = self._results(output)
        self._update(output, results)
        freed, self._freed_in_step = self._freed_in_step, []
        self.pool.free_blocks(freed)
        if not self.has_work():
            return "idle"
        has_news = any(getattr(self._meta, each.name) for each in fields(self._meta) if each.name != "step")
        happened = self._shares or results.finished_sending or results.finished_recving or has_news
        happened = happened or self.host.freePages() != free_before  # quarantined blocks came back: others may begin
        happened = happened or self.gate._queued  # vLLM steps on, and asks again
        return "busy" if happened else "quiet"

    def _share(self, request_id: str, count: int) -> tuple[str, str, list[int], int, int]:
        request = self.requests[request_id]
        first = min(request.num_computed_tokens, request.num_prompt_tokens)
        end = min(request.num_computed_tokens + count, request.num_prompt_tokens)
        return request_id, self.transfers[request_id], list(request.blocks), first, end

    def _preempt(self, request_id: str) -> None:
        request = self.requests.get(request_id)
        if request in self.running:
            self.host.note("preempt", request_id)
            cached_blocks = self.random.randint(0, (request.num_prompt_tokens - 1) // self.block_tokens)
            self.preempt(request_id, cached_when_resumed=cached_blocks * self.block_tokens)

    # ---- blocks

    def _admit(self, request: SimulatedRequest) -> bool:
        """Admits only what can be finished without taking blocks from others."""
        waits = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        if not waits and self._blocks_missing(request) > self.host.freePages() - self._blocks_promised():
            return False
        looks_up = request.num_computed_tokens == 0
        admitted = super()._admit(request)
        if looks_up and request.cached_tokens and request.blocks:
            self._fills.append((self.transfers[request.request_id], list(request.blocks), request.cached_tokens))
        return admitted

    def _blocks_missing(self, request: SimulatedRequest) -> int:
        return -(-(request.num_prompt_tokens + request.max_tokens) // self.block_tokens) - len(request.blocks)

    def _blocks_promised(self) -> int:
        begun = [*self.running, *(request for request in self.waiting if request.blocks)]
        return sum(self._blocks_missing(request) for request in begun)

    def _make_pool(self, block_count: int) -> HostedBlockPool:
        return HostedBlockPool(block_count, self.host, lambda: self._scheduling)

    def _free(self, request: SimulatedRequest) -> None:
        """As vLLM does, blocks that the running forward pass writes come back after it."""
        blocks, request.blocks = request.blocks, []
        if self._planned is not None and request.request_id in self._planned.num_scheduled_tokens:
            self._freed_in_step += blocks
        else:
            self.pool.free_blocks(blocks)

    # ---- ends

    def _finish(self, request: SimulatedRequest, status: RequestStatus) -> None:
        assert request.request_id not in self.ended, f"{request.request_id} ends a second time"
        transfer = self.transfers[request.request_id]
        if status == RequestStatus.FINISHED_LENGTH_CAPPED:
            self.host.served(request.request_id, transfer, request.blocks, request.num_prompt_tokens)
        super()._finish(request, status)
        self.host.note("end", f"{request.request_id} {status.name}")
        answer = self.answers[request.request_id]
        if answer is not None:
            _world().answers[transfer] = answer

    def unended_count(self) -> int:
        return len(self.requests)

    def describe_unended(self) -> str:
        found = [f"{request.request_id} {request.status.name}" for request in self.requests.values()]
        return f"{found} held by the worker {self.worker._worker.held()}"

    def describe_held(self) -> str:
        """What is remembered although all requests have ended; "" at rest."""
        held = []
        if not self.scheduler._half.is_idle():
            held.append(f"its scheduler half remembers {vars(self.scheduler._half)}")
        if self.worker._worker.held():
            held.append(f"its worker half holds {self.worker._worker.held()}")
        if self.has_work():
            held.append("it goes on stepping")
        return " and ".join(held)


class World:
    """All engines of a run, and what the router knows of them."""

    def __init__(self, loaded: release.Release, both_roles: bool = False) -> None:
        self.release = loaded
        self._both_roles = both_roles
        self.engines: dict[int, HostedEngine] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        """What the prefillers' clients were told, by transfer."""
        self.caller: HostedEngine | None = None

    def role_of(self, engine: str) -> str:
        if self._both_roles:
            return "kv_both"
        return "kv_producer" if engine.startswith("P") else "kv_consumer"


class ToHost(logging.Handler):
    """Brings the connector's warnings, and exceptions that it caught, to the engine that runs."""

    def emit(self, record: logging.LogRecord) -> None:
        engine = _world().caller
        if engine is not None:
            exception = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else None
            engine.host.log(record.levelname, record.getMessage(), exception)


_worlds: list[World] = []
_loaded = contextlib.ExitStack()
_undo = contextlib.ExitStack()


def _world() -> World:
    return _worlds[-1]


# ---- what Java calls


def begin_world(mutation: str, both_roles: bool) -> None:
    """Forgets the world before."""
    if not _worlds:
        _worlds.append(World(_loaded.enter_context(release.loaded(RELEASE))))
        logging.getLogger("vllm").addHandler(logging.NullHandler())
        logger = logging.getLogger("vllm.kv_messenger")
        logger.addHandler(ToHost(logging.WARNING))
        logger.propagate = False
    _worlds[:] = [World(_world().release, both_roles)]
    _undo.close()
    _undo.enter_context(hosted_mutants.applied(mutation, _world().release))


def start_engine(number: int, *arguments: Any) -> None:
    """Starts the engine that ``call`` will find by this number."""
    host, name, incarnation, block_tokens, block_count, layers, seed = arguments
    _world().engines[number] = HostedEngine(host, name, incarnation, block_tokens, block_count, list(layers), seed)


def call(number: int, method: str, *arguments: Any) -> Any:
    """Calls a method of an engine."""
    world = _world()
    world.caller = world.engines[number]
    try:
        return getattr(world.caller, method)(*arguments)
    finally:
        world.caller = None
