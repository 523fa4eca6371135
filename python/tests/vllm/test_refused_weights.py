"""What an engine's weights are called behind an update that was refused, with vLLM's own engine core."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import test_weight_changes
from conftest import EngineMaker
from test_weight_changes import OWN_METHODS, core_of, of_a_user

from kv_connector.vllm.weights_at_rest import load_at_rest
from kv_connector.weights.routes import VllmRoutes

core_class = test_weight_changes.core_class


NOTHING = (0, 0, "")


class Workers:
    """Those of a server that takes weights; ``fault`` is what their next calls end with."""

    def __init__(self) -> None:
        self.weight_transfer_engine = self
        self.loaded = self.landed = NOTHING
        self.fault: Exception | None = None

    def call(self, method: Any, _timeout: Any = None, _args: Any = (), kwargs: Any = None) -> list[Any]:
        if callable(method):
            return [method(self)]
        if self.fault is not None:
            raise self.fault
        if method == "update_weights":
            info = kwargs["update_info"]
            fits = not info["refusal"] and info["update_id"] == self.landed[0]
            self.loaded, self.landed = (self.landed if fits else NOTHING), NOTHING
        return [None]


def serving(core_class: type, engine: EngineMaker) -> tuple[Any, Workers, Callable[[], str]]:
    """A core that serves version 5, as it was sent, and what its weights are called."""
    core_class.pause_scheduler = None  # type: ignore[attr-defined]
    load_at_rest(core_class)
    made, workers = engine("kv_producer"), Workers()
    made.own_scheduler._config.device_config.device_type = "cuda"
    core = core_of(core_class, made, workers.call)
    core._weight_version = "default"
    core.vllm_config = SimpleNamespace(
        weight_transfer_config=SimpleNamespace(backend="kv_messenger"),
        parallel_config=SimpleNamespace(data_parallel_size=1),
    )
    core.scheduler.pause_state = SimpleNamespace(name="UNPAUSED")
    core.scheduler.set_pause_state = lambda _state: None
    workers.landed = (1, 5, "ab")
    send(core, 1)
    return core, workers, made.own_scheduler._weights.name


def send(core: Any, update_id: int, **info: str) -> None:
    """By the sender's routes, as vLLM's HTTP process hands them on."""

    def ask(_method: str, path: str, body: Any) -> dict[str, Any]:
        if path == "/update_weights":
            core.collective_rpc("update_weights", None, (), {"update_info": body["update_info"] | info})
        elif path == "/finish_weight_update":
            finish(core, body.get("weight_version"))
        elif path == "/start_weight_update":
            core.collective_rpc("start_weight_update")
        return {"weight_version": core._weight_version}

    VllmRoutes("", ask).load(update_id, 0, "")


def finish(core: Any, version: str | None) -> None:
    """As ``AsyncLLM.finish_weight_update`` of 0.32 and 0.33."""
    core.collective_rpc("finish_weight_update")
    if version is not None:
        core.set_weight_version(version)


def failed(core: Any, workers: Workers, method: str) -> None:
    workers.fault = RuntimeError("the file is cut")
    with contextlib.suppress(RuntimeError):
        core.collective_rpc(method)
    workers.fault = None


def held(core: Any, workers: Workers) -> None:
    """Its weights have landed, and KV of those before cannot be given up."""

    def pause(*_: Any) -> None:
        raise RuntimeError("held")

    workers.landed, given = (2, 6, "cd"), core.pause_scheduler
    core.pause_scheduler = pause
    send(core, 2)
    core.pause_scheduler = given


CHANGES_OF_5: dict[str, Callable[[Any, Workers], object]] = {
    "none": lambda _core, _workers: None,
    "other files": lambda core, _: core.collective_rpc("reload_weights", kwargs={"weights_path": "/models/b"}),
    "sleep": lambda core, _: core.sleep(2),
    **{f"{name} failed": lambda core, workers, name=name: failed(core, workers, name) for name in OWN_METHODS},  # type: ignore[misc]
    **{name: lambda core, _, name=name: core.collective_rpc(name) for name in OWN_METHODS},  # type: ignore[misc]
    "a user's function": lambda core, _: core.collective_rpc(of_a_user),
}
REFUSALS: dict[str, Callable[[Any, Workers], object]] = {
    "not landed": lambda core, _: send(core, 2),
    "the id that was loaded": lambda core, _: send(core, 1),
    "no way to treat requests": lambda core, _: send(core, 2, under_way="abandon"),
    "held": held,
}
ENDS: dict[str, Callable[[Any], object]] = {
    "none": lambda _core: None,
    "without a version": lambda core: finish(core, None),
    "as it was asked for before": lambda core: finish(core, core._weight_version),
    "another version": lambda core: finish(core, "9"),
    "the word for none": lambda core: finish(core, "default"),
}


@pytest.mark.parametrize("change", CHANGES_OF_5)
def test_should_be_called_as_before_where_an_update_was_refused(
    core_class: type, engine: EngineMaker, change: str
) -> None:
    """Senders hear of a refusal over the link only: what they call by HTTP is answered as behind a load."""
    for refusal, end in itertools.product(REFUSALS, ENDS):
        core, workers, name = serving(core_class, engine)
        assert name() == "landed ab"
        CHANGES_OF_5[change](core, workers)
        before = name()
        assert (before == "landed ab") == (change == "none")
        REFUSALS[refusal](core, workers)
        ENDS[end](core)
        assert (name(), core._weight_version) == (before, "5"), (refusal, end)
        workers.landed = (3, 7, "ef")
        send(core, 3)
        ENDS[end](core)
        assert (name(), core._weight_version) == ("landed ef", "7"), (refusal, end)


def test_should_take_the_word_of_a_user_for_weights_that_were_lost(core_class: type, engine: EngineMaker) -> None:
    """By ``/update_weight_version``; only where a client has just ended an update without a version, the second one."""
    for end, version in itertools.product((*ENDS, ""), ("5", "8")):
        core, _, name = serving(core_class, engine)
        core.sleep(2)
        if end:
            ENDS[end](core)
        if end == "without a version":
            core.set_weight_version(version)
            assert name().startswith("landed ab, lost by ")
        core.set_weight_version(version)
        assert name() == ("landed ab" if version == "5" else f"landed ab, {version}")


def test_should_not_call_what_a_later_sender_loaded_by_the_version_of_an_earlier_one(
    core_class: type, engine: EngineMaker
) -> None:
    """Its end of an update, and the version with it, are two calls: a load may come between them."""
    core, workers, name = serving(core_class, engine)
    core.collective_rpc("finish_weight_update")
    workers.landed = (2, 6, "cd")
    send(core, 2)
    core.set_weight_version("5")
    assert (name(), core._weight_version) == ("landed cd", "6")


class RaisingWorkers(Workers):
    """With vLLM's own rules for a session of updates, by which each of several ranks raises."""

    def __init__(self) -> None:
        super().__init__()
        self.is_active = False
        self.raised: list[str] = []

    def call(self, method: Any, _timeout: Any = None, _args: Any = (), kwargs: Any = None) -> list[Any]:
        if method == "start_draft_weight_update" or (
            self.is_active and method in ("start_weight_update", "shutdown_weight_transfer_engine")
        ):
            self.raised.append(method)
            raise RuntimeError("each rank raises, and the second one's answer is taken for that of the next call")
        if method in ("start_weight_update", "finish_weight_update"):
            self.is_active = method == "start_weight_update"
        return super().call(method, _timeout, _args, kwargs)


BEFORE: dict[str, Callable[[Any], object]] = {
    "nothing": lambda _core: None,
    "an open update": lambda core: core.collective_rpc("start_weight_update"),
    "a refused update": lambda core: send(core, 2),
    "an update that was ended": lambda core: finish(core, None),
}


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("method", ["start_draft_weight_update", "shutdown_weight_transfer_engine"])
def test_should_ask_no_worker_what_each_would_raise_for(
    core_class: type, engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, method: str, before: str, engines: int
) -> None:
    monkeypatch.setitem(globals(), "Workers", RaisingWorkers)
    core, workers, name = serving(core_class, engine)
    BEFORE[before](core)
    core.vllm_config.parallel_config.data_parallel_size = engines
    if method.startswith("start_draft"):
        with pytest.raises(RuntimeError, match=r"and not of its draft, expected no /start_draft_weight_update"):
            core.collective_rpc(method)
    else:
        assert core.collective_rpc(method) == []
    assert workers.raised == []  # type: ignore[attr-defined]
    core.vllm_config.parallel_config.data_parallel_size = 1
    workers.landed = (3, 7, "ef")
    send(core, 3)
    assert (name(), core._weight_version) == ("landed ef", "7"), "updates go on"


@pytest.mark.parametrize("method", ["start_draft_weight_update", "shutdown_weight_transfer_engine"])
def test_should_leave_the_calls_of_another_backend_to_its_workers(
    core_class: type, engine: EngineMaker, method: str
) -> None:
    core, _, _ = serving(core_class, engine)
    core.vllm_config.weight_transfer_config.backend = "nccl"
    assert core.collective_rpc(method) == [None]
