"""How long a worker waits in steps that compute nothing; time is the test's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector.exceptions import MessengerError
from kv_connector.vllm.empty_steps import WAIT_MAX_SECONDS, WAIT_SHARE, EmptySteps

REQUEST = "chatcmpl-0123456789abcdef-89abcdef"


class Clock:
    """Moves only when a caller sleeps, or the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.seconds += seconds


def test_should_wait_a_share_of_the_time_without_news_and_never_longer_than_the_limit() -> None:
    clock = Clock()
    steps = EmptySteps(clock.now)
    steps.wait(lambda: False, clock.sleep)
    assert clock.slept == [], "the step after one that computed does not wait"
    clock.seconds += 0.004
    steps.wait(lambda: False, clock.sleep)
    assert sum(clock.slept) == pytest.approx(0.004 * WAIT_SHARE)
    clock.slept.clear()
    clock.seconds += 60.0
    steps.wait(lambda: False, clock.sleep)
    assert sum(clock.slept) == pytest.approx(WAIT_MAX_SECONDS)


def test_should_end_the_wait_with_the_first_news_and_not_with_what_is_none() -> None:
    clock = Clock()
    steps = EmptySteps(clock.now)
    clock.seconds += 60.0
    ends_early: list[float] = []

    def pause(limit_seconds: float) -> None:
        ends_early.append(limit_seconds)
        clock.seconds += 0.0001

    steps.wait(lambda: len(ends_early) == 3, pause)
    assert ends_early == pytest.approx([WAIT_MAX_SECONDS, WAIT_MAX_SECONDS - 0.0001, WAIT_MAX_SECONDS - 0.0002])


def test_should_wait_by_the_clock_where_the_messenger_cannot_be_waited_for() -> None:
    clock = Clock()
    steps = EmptySteps(clock.now, clock.sleep)
    clock.seconds += 60.0

    def closed(_limit_seconds: float) -> None:
        raise MessengerError("the messenger is closed: open another one")

    steps.wait(lambda: False, closed)
    assert clock.slept == pytest.approx([WAIT_MAX_SECONDS])


def test_should_begin_anew_after_an_interruption() -> None:
    clock = Clock()
    steps = EmptySteps(clock.now)
    clock.seconds += 60.0
    steps.interrupted()
    steps.wait(lambda: False, clock.sleep)
    assert clock.slept == []


class Observed:
    """Stands for an engine's EmptySteps and notes what it is told."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.calls: list[str] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What happens during a wait."""
        engine.worker._worker._empty_steps = self

    def interrupted(self) -> None:
        self.calls.append("interrupted")

    def wait(self, look: Callable[[], bool], _pause: Callable[[float], object]) -> None:
        self.meanwhile()
        self.calls.append("news in time" if look() else "wait")

    def of_step(self, engine: SimulatedEngine) -> list[str]:
        self.calls.clear()
        engine.step()
        return list(self.calls)


def test_should_wait_for_kv_and_not_while_something_is_computed(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    observed = Observed(decoder)
    assert observed.of_step(decoder) == ["wait"], "vLLM steps for something else: another rank, another connector"
    decoder.add(REQUEST, 700, remote_prefill(), max_tokens=2)
    assert observed.of_step(decoder) == ["interrupted", "wait"], "a new fetch is waited for anew"
    assert observed.of_step(decoder) == ["wait"]
    decoder.messenger.arrive(REQUEST)
    assert observed.of_step(decoder) == ["interrupted"]
    assert observed.of_step(decoder) == ["interrupted"], "the request's own forward pass"
    decoder.steps(2)
    assert decoder.at_rest()


def test_should_wait_for_the_release_of_a_prefill_and_report_it_in_the_same_step(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 200, remote_decode())
    observed = Observed(prefiller)
    assert observed.of_step(prefiller) == ["interrupted"]
    assert observed.of_step(prefiller) == ["interrupted", "wait"]
    assert observed.of_step(prefiller) == ["wait"]
    observed.meanwhile = lambda: prefiller.messenger.release(REQUEST)
    assert observed.of_step(prefiller) == ["news in time"]
    assert prefiller.at_rest()
