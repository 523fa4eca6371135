"""What ties pulls to SGLang's scheduler: its rounds, its sleep, its idea of being idle, its passes, and the proof."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("sglang_plugins")

WAIT_LIMIT_SECONDS = 900.0


class Waited:
    """A messenger whose events a test makes."""

    def __init__(self) -> None:
        self.events = threading.Event()
        self.waits = threading.Semaphore(0)
        self.closed = False

    def wait(self, _limit_seconds: float) -> None:
        self.waits.release()
        self.events.wait(WAIT_LIMIT_SECONDS)
        if self.closed:
            raise ConnectionError("closed")


def test_should_wake_a_scheduler_that_sleeps_for_each_event() -> None:
    import zmq

    from kv_connector.sglang.idle_wake import IdleWake

    messenger, poller = Waited(), zmq.Poller()
    wake = IdleWake.of(SimpleNamespace(idle_sleeper=SimpleNamespace(poller=poller)), messenger)
    assert wake is not None
    for _ in range(3):
        assert messenger.waits.acquire(timeout=WAIT_LIMIT_SECONDS)
        assert not poller.poll(0), "nothing has come"
        messenger.events.set()
        assert poller.poll(WAIT_LIMIT_SECONDS * 1000)
        messenger.events.clear()
        wake.polled()
    assert messenger.waits.acquire(timeout=WAIT_LIMIT_SECONDS)
    wake.close()
    messenger.closed = True
    messenger.events.set()
    wake._thread.join(WAIT_LIMIT_SECONDS)
    assert not wake._thread.is_alive()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(wake._descriptor)


@pytest.mark.parametrize("sleeper", [None, SimpleNamespace()])
def test_should_wake_no_scheduler_that_waits_for_nothing(sleeper: Any) -> None:
    from kv_connector.sglang.idle_wake import IdleWake

    assert IdleWake.of(SimpleNamespace(idle_sleeper=sleeper), Waited()) is None


@dataclass
class Holding:
    """Stands for the pulls of an engine."""

    held: bool = True
    ended: int = 0

    def holds(self) -> bool:
        return self.held

    def overlooked(self) -> Any:
        return contextlib.nullcontext()

    def let_go(self) -> None:
        self.ended += 1


def scheduler_with(pulls: Any, queue: str) -> Any:
    from kv_connector.sglang.endpoint import TransferEndpoint

    endpoint: Any = object.__new__(TransferEndpoint)
    endpoint.prefix_pulls = pulls
    idle: Any = lambda **_: True  # noqa: E731
    named = {queue: SimpleNamespace(kv_manager=endpoint)}
    return SimpleNamespace(**named, _engine_paused=False, is_fully_idle=idle)


@pytest.mark.parametrize("queue", ["disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"])
@pytest.mark.parametrize("held", [True, False])
def test_should_not_be_idle_while_pulls_hold_pages(queue: str, held: bool) -> None:
    from kv_connector.sglang import hooks

    scheduler = scheduler_with(Holding(held), queue)
    for idle in (True, False):
        seen = hooks.is_fully_idle(lambda *_, idle=idle, **__: idle, scheduler, ignore_waiting=True)
        assert seen == (idle and not held)
    assert hooks.is_fully_idle(lambda *_, **__: True, scheduler, for_health_check=True)
    assert hooks.is_fully_idle(lambda *_, **__: True, scheduler, True)


def test_should_end_pulls_before_the_cache_is_emptied() -> None:
    from kv_connector.sglang import hooks

    pulls = Holding()
    hooks.end_pulls(scheduler_with(pulls, "disagg_prefill_bootstrap_queue"))
    hooks.end_pulls(SimpleNamespace())
    assert pulls.ended == 1


def test_should_end_pulls_before_memory_is_given_back() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kv_connector.sglang import hooks, registration, weight_changes

    registration.hook_scheduler()
    kinds = [kind for kind, hook, _source in HookRegistry._hooks[weight_changes.RELEASE] if hook is hooks.end_pulls_of]
    assert kinds == [HookType.BEFORE]
    pulls = Holding()
    hooks.end_pulls_of(SimpleNamespace(scheduler=scheduler_with(pulls, "disagg_decode_prealloc_queue")))
    assert pulls.ended == 1


@pytest.mark.parametrize("polls", [0, 3])
def test_should_wait_for_no_release_that_does_not_come(monkeypatch: pytest.MonkeyPatch, polls: int) -> None:
    """With ``polls`` it comes, after as many rounds."""
    from kv_connector.sglang import prefix_pulls
    from kv_connector.sglang.pull_ranks import PullRanks

    monkeypatch.setattr(prefix_pulls, "LET_GO_LIMIT_SECONDS", WAIT_LIMIT_SECONDS if polls else 0.0)
    seen: list[str] = []
    held = lambda: int(not polls or seen.count("poll") < polls)  # noqa: E731
    pulls: Any = object.__new__(prefix_pulls.PrefixPulls)
    pulls._exchange = SimpleNamespace(drain=lambda: seen.append("poll"))
    pulls._idle_wake = None
    pulls._ranks = PullRanks()
    pulls.passes = SimpleNamespace(poll=lambda: None)
    nothing: dict[str, Any] = {"poll": lambda: None, "votes": list, "agreed": lambda _: None}
    pulls.asked_for = SimpleNamespace(
        poll=lambda: None,
        abandon_all=lambda: seen.append("abandon"),
        landing_count=lambda: 0,
        landings=SimpleNamespace(**nothing),
    )
    pulls.offers = SimpleNamespace(
        **nothing,
        withdraw=lambda: seen.append("withdraw"),
        held_count=held,
        closed=contextlib.nullcontext,
    )
    pulls._is_overlooked = False
    pulls.let_go()
    assert seen[:2] == ["abandon", "withdraw"]
    assert pulls.holds() == (polls == 0)


@dataclass
class Device:
    """Streams and events of a device that does its work when a test lets it."""

    recorded: list[Any] = field(default_factory=list)
    done: bool = False

    def current_stream(self) -> str:
        return "scheduler's"

    def Event(self) -> Any:  # noqa: N802 - torch's word
        return SimpleNamespace(record=self.recorded.append, query=lambda: self.done)


@pytest.mark.parametrize(("overlap", "streams"), [(False, ["scheduler's"]), (True, ["scheduler's", "passes'"])])
def test_should_wait_for_all_streams_of_a_device(overlap: bool, streams: list[str]) -> None:
    from kv_connector.sglang.passes import PassesSoFar

    device = Device()
    scheduler = SimpleNamespace(device="cuda", device_module=device, enable_overlap=overlap, forward_stream="passes'")
    passes = PassesSoFar(scheduler)
    assert device.recorded == streams
    assert not passes.are_over()
    device.done = True
    assert passes.are_over()


def test_should_measure_passes_when_they_are_over() -> None:
    from kv_connector.pulls.prefill_rate import PrefillRate
    from kv_connector.sglang.prefix_pulls import MeasuredPasses

    device, now = Device(), [0.0]
    scheduler = SimpleNamespace(device="cuda", device_module=device, enable_overlap=False)
    rate = PrefillRate(lambda: now[0])
    passes = MeasuredPasses(scheduler, rate)
    assert passes.run(10, lambda: "few") == "few"
    assert passes.run(1000, lambda: "many") == "many"
    now[0] = 2.0
    passes.poll()
    assert rate.seconds_of(1) is None
    device.done = True
    passes.poll()
    assert rate.seconds_of(500) == pytest.approx(1.0)


class ProofWorld:
    """A proof whose pass and comparison go as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, check: Any, finding: str = "", unsafe: str = "") -> None:
        from kv_connector.runtime.commands import PrefillerAddress
        from kv_connector.sglang import pair_check, pull_proof
        from kv_connector.sglang.own_pass import NoRoomError
        from kv_connector.sglang.pair_states import Arrival, PairStates, Verdict
        from kv_connector.sglang.pull_ranks import PullRanks

        self.compared: list[Any] = []
        self.counted: list[str] = []
        self.full = False
        world = self

        class Pass:
            row = 9

            def __init__(self, _scheduler: Any, tokens: Any, _adapter: None) -> None:
                if world.full:
                    raise NoRoomError("full")
                self.token_count = len(tokens)

            def run(self) -> None:
                world.compared.append(self.token_count)

            def release(self) -> None:
                world.compared.append("released")

        def verdict(*compared: Any) -> Verdict:
            world.compared.append(compared[1:])
            return Verdict(True, 0.1, finding)

        monkeypatch.setattr(pull_proof, "OwnPass", Pass)
        monkeypatch.setattr(pair_check, "unsafe", lambda *_: unsafe)
        monkeypatch.setattr(pair_check, "ReceivedRows", lambda _: SimpleNamespace(landed_verdict=verdict))
        exchange: Any = SimpleNamespace(count_compared=lambda outcome, *_: self.counted.append(outcome))
        tree: Any = SimpleNamespace(free_up=lambda _: None)
        self.pairs = PairStates(check, weights=lambda: "", logger=logging.getLogger("pulls"))
        self.proof = pull_proof.PullProof(
            SimpleNamespace(enable_overlap=False),
            None,
            tree,
            self.pairs,
            exchange,
            PullRanks(),
            logging.getLogger("pulls"),
        )
        self.arrival = Arrival()
        self.source = (PrefillerAddress("10.0.0.1", 7),)
        assert not self.pairs.fetching(self.arrival, self.source)
        self.arrival.sessions = 0

    def proves(self, landed: int = 100, end: int = 100) -> bool:
        return self.proof.proves(self.arrival, list(range(end)), range(landed), end)


def test_should_compare_the_first_beginning_of_an_engine_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ProofWorld(monkeypatch, "fail")
    assert world.proof.is_due(world.arrival)
    assert world.proves(landed=600, end=600)
    assert world.compared == [512, (9, 0, 512), "released"]
    assert world.counted == ["equal"]
    assert not world.proof.is_due(world.arrival)
    assert world.proves(landed=50)
    assert world.counted == ["equal"]


@pytest.mark.parametrize(("check", "used"), [("fail", False), ("warn", True), ("off", True)])
def test_should_use_wrong_kv_only_where_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, check: Any, used: bool
) -> None:
    world = ProofWorld(monkeypatch, check, finding="K of layer 0 differs")
    assert world.proves() == used
    assert world.counted == ([] if check == "off" else ["different"])
    refusal = world.pairs.fetching(world.arrival, world.source)
    assert bool(refusal) == (check == "fail")


@pytest.mark.parametrize(("check", "used"), [("fail", False), ("warn", True)])
def test_should_not_use_what_could_not_be_compared(monkeypatch: pytest.MonkeyPatch, check: Any, used: bool) -> None:
    world = ProofWorld(monkeypatch, check)
    world.full = True
    assert world.proves() == used
    assert world.counted == ["unjudged"]
    assert world.proof.is_due(world.arrival), "it is tried again"


def test_should_pull_nothing_where_nothing_can_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ProofWorld(monkeypatch, "fail", unsafe="--enable-pdmux is set")
    assert world.proof.is_impossible()
    assert not world.proves()
    assert not ProofWorld(monkeypatch, "warn", unsafe="--enable-pdmux is set").proof.is_impossible()
