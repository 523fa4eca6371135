"""The engine core around an update of weights: it rests meanwhile, goes on by itself, and no worker of it raises."""

from __future__ import annotations

import ast
import enum
import itertools
import queue
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import vllm_sources

from kv_connector.vllm.weights_at_rest import load_at_rest
from kv_connector.weights.routes import CONTINUE, FINISH

UPDATE = 7
VERSION = 70
NAME = "ab"
NOT_LOADED = (0, 0, "")


class State(enum.IntEnum):
    """vLLM's states of a pause."""

    UNPAUSED = 0
    PAUSED_NEW = 1
    PAUSED_ALL = 2


class Worker:
    """A session as vLLM's workers keep it, which raises at what does not fit into it."""

    def __init__(self, core: CoreDouble) -> None:
        self._core = core
        self._active = False
        self.refuses = False
        self.loaded = NOT_LOADED
        self.weight_transfer_engine = self
        self.updates: list[tuple[dict[str, Any], State]] = []
        self.finished: list[State] = []

    def start_weight_update(self) -> None:
        assert not self._active, "start_weight_update called while a weight update is already active"
        self._active = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        assert self._active, "start_weight_update must be called before update_weights"
        self.updates.append((update_info, self._core.scheduler.pause_state))
        if not update_info["refusal"] and not self.refuses:
            assert self._core.caches_empty
            self.loaded = (update_info["update_id"], VERSION, NAME)

    def finish_weight_update(self) -> None:
        assert self._active, "finish_weight_update called without a matching start_weight_update"
        self._active = False
        self.finished.append(self._core.scheduler.pause_state)


class Scheduler:
    def __init__(self) -> None:
        self.pause_state = State.UNPAUSED
        self.connector: Any = None
        self.waiting: list[Any] = []
        self.kv_holding_waiting: list[Any] = []

    def schedule(self) -> None: ...

    def set_pause_state(self, state: State) -> None:
        self.pause_state = state


class CoreDouble:
    """What of vLLM's engine core an update meets. Each test patches a class of its own."""

    def __init__(self, *, backend: str = "kv_messenger", engines: int = 1) -> None:
        self.vllm_config = SimpleNamespace(
            weight_transfer_config=SimpleNamespace(backend=backend),
            parallel_config=SimpleNamespace(data_parallel_size=engines),
        )
        self.scheduler = Scheduler()
        self.worker = Worker(self)
        self.model_executor = SimpleNamespace(collective_rpc=self._to_workers, sleeping_tags=set())
        self.modes: list[tuple[str, bool]] = []
        self.resting: Future[None] | None = None
        self.fault: Exception | None = None
        self.caches_empty = False
        self.versions: list[str] = []

    def _to_workers(self, method: Any, _timeout: Any = None, args: Sequence[Any] = (), kwargs: Any = None) -> list[Any]:
        if callable(method):
            return [method(self.worker)]
        return [getattr(self.worker, method)(*args, **(kwargs or {}))]

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> Any:
        return self.model_executor.collective_rpc(method, timeout, args, kwargs)

    def pause_scheduler(self, mode: str, clear_cache: bool) -> Future[None] | None:
        self.modes.append((mode, clear_cache))
        self.scheduler.set_pause_state(State.PAUSED_ALL if mode == "keep" else State.PAUSED_NEW)
        if self.fault is not None and self.resting is None:
            raise self.fault
        self.caches_empty = self.resting is None
        return self.resting

    def rest(self) -> None:
        """What was under way has ended, or its KV cannot be given up."""
        assert self.resting is not None
        if self.fault is not None:
            self.resting.set_exception(self.fault)
        else:
            self.caches_empty = True
            self.resting.set_result(None)

    def set_weight_version(self, version: str) -> None:
        self.versions.append(version)

    def sleep(self, tags: Sequence[str]) -> None:
        """Its user puts it to sleep, and may have woken a part of it up."""
        if tags:
            self.scheduler.set_pause_state(State.PAUSED_NEW)
            self.model_executor.sleeping_tags.update(tags)

    def update(self, **info: Any) -> Any:
        return self.collective_rpc("update_weights", None, (), {"update_info": {"update_id": UPDATE, **info}})


@pytest.fixture
def made() -> Callable[..., CoreDouble]:
    class Patched(CoreDouble):
        collective_rpc = CoreDouble.collective_rpc

    load_at_rest(Patched)
    load_at_rest(Patched)
    return Patched


@pytest.fixture
def core(made: Callable[..., CoreDouble]) -> CoreDouble:
    return made()


@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
@pytest.mark.parametrize("ends", [True, False])
def test_should_finish_an_update_before_the_engine_goes_on(core: CoreDouble, under_way: str, ends: bool) -> None:
    """vLLM's workers forget only then what adapters keep of the weights before, and its sender may have died."""
    core.collective_rpc("start_weight_update")
    core.update(under_way=under_way)
    assert core.worker.finished == [core.worker.updates[0][1]]
    if ends:
        assert core.collective_rpc("finish_weight_update") == []
    core.update()
    assert len(core.worker.finished) == len(core.worker.updates) == 2
    core.worker.refuses = True
    core.collective_rpc("update_weights", None, (), {"update_info": {"update_id": UPDATE + 1}})
    assert len(core.worker.finished) == 2, "a sender that was refused goes on with its update"


def test_should_load_while_no_request_runs_and_go_on_afterwards(core: CoreDouble) -> None:
    core.collective_rpc("start_weight_update")
    core.update()
    assert core.modes == [("keep", True)]
    assert core.worker.updates == [({"update_id": UPDATE, "at_rest": True, "refusal": ""}, State.PAUSED_ALL)]
    assert core.scheduler.pause_state == State.UNPAUSED
    assert core.versions == [str(VERSION)]


def test_should_name_the_weights_only_if_they_were_loaded(core: CoreDouble) -> None:
    core.worker.refuses = True
    core.update()
    core.worker.loaded = (UPDATE - 1, VERSION, NAME)
    core.update()
    assert core.versions == []


@pytest.mark.parametrize("rests_later", [False, True])
def test_should_let_no_worker_raise_whatever_senders_call(made: Callable[..., CoreDouble], rests_later: bool) -> None:
    for calls in itertools.product(("start", "update", "finish", "rest"), repeat=5):
        core = made()
        core.resting = Future() if rests_later else None
        for call in calls:
            called(core, call)
        if core.resting is not None:
            called(core, "rest")
        core.resting = None
        core.update()
        assert core.worker.loaded == (UPDATE, VERSION, NAME), calls
        assert core.scheduler.pause_state == State.UNPAUSED, calls


def called(core: CoreDouble, call: str) -> None:
    if call == "update":
        core.update()
    elif call != "rest":
        core.collective_rpc(f"{call}_weight_update")
    elif core.resting is not None and core.modes:
        core.rest()
        core.resting = Future()
        core.modes.clear()


@pytest.mark.parametrize(("under_way", "mode"), [(CONTINUE, "keep"), (FINISH, "wait")])
def test_should_answer_when_the_engine_has_come_to_rest(
    core: CoreDouble, monkeypatch: pytest.MonkeyPatch, under_way: str, mode: str
) -> None:
    types = SimpleNamespace(EngineCoreRequestType=SimpleNamespace(WAKEUP="wake"))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine", types)
    core.input_queue = queue.Queue()  # type: ignore[attr-defined]
    core.resting = Future()
    answer = core.update(under_way=under_way)
    assert core.modes == [(mode, True)]
    assert not answer.done()
    assert core.worker.updates == []
    core.rest()
    assert answer.result() == [None]
    assert core.worker.loaded == (UPDATE, VERSION, NAME)
    assert core.scheduler.pause_state == State.UNPAUSED
    assert core.input_queue.get_nowait() == ("wake", None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("ends", ["at once", "later", "not at all"])
@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
def test_should_have_no_other_engine_wait_while_it_comes_to_rest(core: CoreDouble, under_way: str, ends: str) -> None:
    heard: list[tuple[Any, ...]] = []

    def hears(word: str) -> Callable[..., None]:
        return lambda *given: heard.append((word, core.scheduler.pause_state, *given[: word == "rests"]))

    core.scheduler.connector = SimpleNamespace(
        on_weights_called=hears("loaded"), on_coming_to_rest=hears("rests"), on_going_on=hears("goes on")
    )
    core.resting = None if ends == "at once" else Future()
    core.fault = RuntimeError("held") if ends == "not at all" else None
    core.update(under_way=under_way)
    if core.resting is not None:
        core.rest()
    assert heard[0] == ("rests", State.UNPAUSED, under_way == FINISH)
    assert [word for word, *_ in heard if word != "loaded"] == ["rests", "goes on"]
    assert [word for word, *_ in heard].count("loaded") == (ends != "not at all")
    assert "schedule" not in vars(core.scheduler)
    assert heard[-1] == ("goes on", State.PAUSED_ALL if under_way == CONTINUE else State.PAUSED_NEW)


@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
def test_should_end_what_is_preempted_where_answers_are_to_end(core: CoreDouble, under_way: str) -> None:
    """With `continue` they go on by the new weights as all do; what has not begun waits in either case."""
    preempted, queued = (SimpleNamespace(status=SimpleNamespace(name=name)) for name in ("PREEMPTED", "WAITING"))
    core.scheduler.waiting = Queue([preempted, queued])
    core.scheduler.kv_holding_waiting = Queue()
    core.resting = Future()
    core.update(under_way=under_way)
    ended = under_way == FINISH
    assert list(core.scheduler.kv_holding_waiting) == [preempted] * ended
    assert list(core.scheduler.waiting) == [preempted] * (not ended) + [queued]
    core.rest()
    assert "schedule" not in vars(core.scheduler)


@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
def test_should_say_how_to_send_where_old_kv_is_held(core: CoreDouble, under_way: str) -> None:
    core.fault = RuntimeError("Failed to reset the KV connector cache.")
    core.update(under_way=under_way)
    ((info, _),) = core.worker.updates
    assert "send with --under-way finish" in info["refusal"] or under_way == FINISH
    assert "send again when it has ended" in info["refusal"]
    assert info["refusal"].endswith("(Failed to reset the KV connector cache.)")


class Queue(list[Any]):
    """As vLLM's."""

    def prepend_request(self, request: Any) -> None:
        self.insert(0, request)

    def remove_requests(self, requests: Sequence[Any]) -> None:
        self[:] = [each for each in self if each not in requests]


def test_should_refuse_a_second_update_while_one_waits(core: CoreDouble) -> None:
    core.resting = Future()
    answer = core.update()
    core.collective_rpc("finish_weight_update")
    core.collective_rpc("start_weight_update")
    core.update(update_id=UPDATE + 1)
    ((second, _),) = core.worker.updates
    assert second["update_id"] == UPDATE + 1
    assert second["refusal"].startswith("another update waits")
    core.rest()
    assert answer.result() == [None]
    assert core.worker.loaded == (UPDATE, VERSION, NAME)
    core.resting = None
    core.update(update_id=UPDATE + 2)
    assert core.worker.loaded == (UPDATE + 2, VERSION, NAME)


@pytest.mark.parametrize("at_once", [True, False])
def test_should_change_nothing_where_old_kv_is_held(core: CoreDouble, at_once: bool) -> None:
    core.fault = RuntimeError("Failed to reset the KV connector cache.")
    core.resting = None if at_once else Future()
    core.update()
    if not at_once:
        core.rest()
    ((info, _),) = core.worker.updates
    assert info["refusal"].startswith("KV of the weights before is held")
    assert core.scheduler.pause_state == State.UNPAUSED
    assert core.worker.loaded == NOT_LOADED


@pytest.mark.parametrize(("before", "mode"), [(State.PAUSED_ALL, "keep"), (State.PAUSED_NEW, "wait")])
def test_should_leave_an_engine_paused_that_its_user_has_paused(core: CoreDouble, before: State, mode: str) -> None:
    core.scheduler.set_pause_state(before)
    core.update(under_way=FINISH)
    assert core.modes == [(mode, True)]
    assert core.worker.loaded == (UPDATE, VERSION, NAME)
    assert core.scheduler.pause_state == before


@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
@pytest.mark.parametrize("before", list(State))
def test_should_go_on_as_its_user_has_asked_for_meanwhile(
    made: Callable[..., CoreDouble], before: State, under_way: str
) -> None:
    """By /pause, /resume, /sleep and /wake_up: an engine that was put to sleep has no memory to compute with."""
    for count in range(3):
        for asked in itertools.product(State, repeat=count):
            core = made()
            core.scheduler.set_pause_state(before)
            core.resting = Future()
            core.update(under_way=under_way)
            for state in asked:
                core.scheduler.set_pause_state(state)
            core.rest()
            assert core.worker.loaded == (UPDATE, VERSION, NAME)
            assert core.scheduler.pause_state == (asked or (before,))[-1], asked
            assert "set_pause_state" not in vars(core.scheduler)


@pytest.mark.parametrize("under_way", [CONTINUE, FINISH])
@pytest.mark.parametrize("sleeps", ["before", "meanwhile", "meanwhile, for some time"])
@pytest.mark.parametrize("tags", [(), ("kv_cache",), ("weights",), ("weights", "kv_cache")], ids=str)
def test_should_load_nothing_into_an_engine_that_sleeps(
    core: CoreDouble, under_way: str, sleeps: str, tags: tuple[str, ...]
) -> None:
    core.resting = Future()
    if sleeps == "before":
        core.sleep(tags)
    core.update(under_way=under_way)
    if sleeps != "before":
        core.sleep(tags)
    if "some time" in sleeps:
        core.model_executor.sleeping_tags.clear()
    if core.modes:
        core.rest()
    ((info, _),) = core.worker.updates
    refused = "weights" in tags and "some time" not in sleeps
    assert info["refusal"].startswith("this server sleeps") == refused
    assert (core.worker.loaded == NOT_LOADED) == refused
    assert core.scheduler.pause_state == (State.PAUSED_NEW if tags else State.UNPAUSED)
    core.model_executor.sleeping_tags.clear()
    core.resting = None
    core.update()
    assert core.worker.loaded == (UPDATE, VERSION, NAME), "it was woken up"


def test_should_refuse_what_is_no_way_to_treat_requests(core: CoreDouble) -> None:
    core.update(under_way="abandon")
    ((info, _),) = core.worker.updates
    assert "none of continue, finish" in info["refusal"]
    assert core.modes == []


def test_should_open_an_update_again_after_a_worker_has_raised(core: CoreDouble) -> None:
    def raises(update_info: dict[str, Any]) -> None:  # noqa: ARG001
        core.worker._active = False
        raise RuntimeError("as vLLM's worker does")

    good, core.worker.update_weights = core.worker.update_weights, raises  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        core.update()
    assert core.scheduler.pause_state == State.UNPAUSED
    core.worker.update_weights = good  # type: ignore[method-assign]
    core.update()
    assert core.worker.loaded == (UPDATE, VERSION, NAME)


def test_should_leave_other_backends_and_several_engines_alone(made: Callable[..., CoreDouble]) -> None:
    for core in (made(backend="nccl"), made(engines=2)):
        core.collective_rpc("start_weight_update")
        with pytest.raises(AssertionError, match="already active"):
            core.collective_rpc("start_weight_update")
        assert core.modes == []


def test_should_ask_the_first_rank_for_the_status(core: CoreDouble) -> None:
    core.worker.status = lambda: {"landing": "none"}  # type: ignore[attr-defined]
    assert core.collective_rpc("kv_messenger_weights") == [{"landing": "none"}]


def test_should_refuse_an_engine_core_of_another_form() -> None:
    class Other:
        def collective_rpc(self) -> None: ...

    with pytest.raises(AttributeError):
        load_at_rest(Other)


@pytest.mark.parametrize("release", vllm_sources.RELEASES)
def test_should_find_what_it_uses_in_each_release(release: str) -> None:
    try:
        folder = vllm_sources.sources(release) / "vllm" / "v1"
    except vllm_sources.SourcesUnavailableError as missing:
        pytest.skip(str(missing))
    core = declared(folder / "engine" / "core.py")
    assert core["EngineCore.pause_scheduler"] == ["self", "mode", "clear_cache"]
    assert core["EngineCoreProc.pause_scheduler"] == ["self", "mode", "clear_cache"]
    assert core["EngineCore.collective_rpc"] == ["self", "method", "timeout", "args", "kwargs"]
    assert core["EngineCore.set_weight_version"] == ["self", "weight_version"]
    file = folder / "core" / "sched" / "scheduler.py"
    scheduler = declared(file)
    assert scheduler["Scheduler.schedule"][:1] == ["self"]
    drained = ast.parse(file.read_text(encoding="utf-8"))
    assert "len(self.kv_holding_waiting)" in unparsed(drained, "get_num_unfinished_requests"), "what a rest waits for"
    assert "request_queue = self.kv_holding_waiting" in unparsed(drained, "schedule"), "what is admitted before it"
    assert "RequestStatus.PREEMPTED" in unparsed(drained, "_preempt_request")
    queue = declared(folder / "core" / "sched" / "request_queue.py")
    assert queue["RequestQueue.prepend_request"] == ["self", "request"]
    assert queue["RequestQueue.remove_requests"] == ["self", "requests"]
    assert scheduler["Scheduler.set_pause_state"] == ["self", "pause_state"]
    assert scheduler["Scheduler.pause_state"] == ["self"]
    assert "PAUSED_ALL" in (folder / "core" / "sched" / "interface.py").read_text(encoding="utf-8")
    executor = (folder / "executor" / "abstract.py").read_text(encoding="utf-8")
    assert '"weights" in self.sleeping_tags' in executor
    assert "WAKEUP" in (folder / "engine" / "__init__.py").read_text(encoding="utf-8")


def unparsed(tree: ast.AST, name: str) -> str:
    """The text of the first method of this name."""
    return next(ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def declared(file: Any) -> dict[str, list[str]]:
    """The methods of a file's classes, with the names of what they take."""
    classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    return {
        f"{each.name}.{method.name}": [argument.arg for argument in method.args.args]
        for each in classes
        for method in each.body
        if isinstance(method, ast.FunctionDef)
    }
