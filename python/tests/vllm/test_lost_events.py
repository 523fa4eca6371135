"""No request hangs on one event: an event that is lost, or that cannot be handled, harms its own request only."""

from __future__ import annotations

import sys
from typing import Any, get_args

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector import Arrived, Failed, Granted, Log, Prefilled, Quarantined, Released, Stopped, Timeline
from kv_connector.runtime.facade import Asked, Connected, Disconnected, Event, Offered, decode_events

KINDS = get_args(Event)
HELD_BLOCKS = 6
"""The blocks of one request of 700 tokens."""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def with_clock(engine: SimulatedEngine, clock: Clock) -> SimulatedEngine:
    half = engine.worker._worker
    half._now_seconds = half._prefills._now_seconds = clock
    return engine


def after_all_limits(engine: SimulatedEngine, clock: Clock) -> None:
    """The limits of the messenger pass, and a step on the way to them and one behind."""
    limits = engine.worker._worker._limits
    clock.now += limits.fetch_seconds
    engine.step()
    clock.now += 2 * limits.silence_seconds
    engine.steps(3)


def test_should_know_each_kind_of_event() -> None:
    of_prefills = {Released, Granted, Stopped}
    of_fetches = {Prefilled, Connected, Disconnected, Arrived, Quarantined, Failed, Offered}
    of_sglang = {Asked}  # this engine is asked by its API
    assert set(KINDS) == of_prefills | of_fetches | of_sglang | {Timeline, Log}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_should_end_a_prefill_although_an_event_is_lost(engine: EngineMaker, clock: Clock, kind: type) -> None:
    prefiller = with_clock(engine("kv_producer"), clock)
    prefiller.messenger.drops.append(kind)
    for name in ("a-00000000", "b-00000000"):
        prefiller.add(name, 100, remote_decode())
        prefiller.messenger.say("info", "it rains")
        prefiller.messenger.draw("t", request=name)
        prefiller.step()
        prefiller.messenger.grant(name)
        prefiller.messenger.stop(name)
        prefiller.steps(2)
    for name in ("a-00000000", "b-00000000"):
        prefiller.messenger.release(name)
    prefiller.steps(2)
    assert prefiller.at_rest() == (kind is not Released)
    assert prefiller.has_work() == (kind is Released)
    after_all_limits(prefiller, clock)
    assert prefiller.at_rest()


def test_should_not_end_a_prefill_that_the_messenger_still_has(engine: EngineMaker, clock: Clock) -> None:
    """A decoder whose pool is full may come hours later; its pages are told of again and again, and stay."""
    prefiller = with_clock(engine("kv_producer"), clock)
    prefiller.add("a-00000000", 700, remote_decode())
    prefiller.steps(5)
    owed = dict(prefiller.messenger.owes())
    for _ in range(3):
        prefiller.messenger._owed.clear()  # the messenger ignores the end that is told again
        after_all_limits(prefiller, clock)
        assert len(prefiller.free_blocks) == prefiller.block_count - HELD_BLOCKS
    assert len(prefiller.messenger.of_kind("prefillEnded")) == 4
    prefiller.messenger._owed.update(owed)
    prefiller.messenger.release("a-00000000")
    prefiller.step()
    assert prefiller.at_rest()


END_OF = {Arrived: "arrive", Failed: "fail", Quarantined: "quarantine"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("end", END_OF.values())
def test_should_end_a_fetch_although_an_event_is_lost(engine: EngineMaker, clock: Clock, end: str, kind: type) -> None:
    """What may still be written to stays out of use until there is proof: the messenger is asked for a lost one."""
    decoder = with_clock(engine("kv_consumer"), clock)
    decoder.add("other-00000000", 100, remote_prefill())
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.messenger.drops.append(kind)
    decoder.step()
    decoder.messenger.say("info", "it rains")
    decoder.messenger.draw("t", side="decoder", request="a-00000000")
    getattr(decoder.messenger, end)("a-00000000")
    decoder.steps(3)
    decoder.messenger.drops.clear()
    decoder.messenger.arrive("other-00000000")
    decoder.steps(3)
    assert "other-00000000" in decoder.ended, "another request waits for the lost event"
    after_all_limits(decoder, clock)
    lost = END_OF.get(kind) == end
    assert decoder.ended["a-00000000"].name == (
        "FINISHED_LENGTH_CAPPED" if end == "arrive" and not lost else "FINISHED_ERROR"
    )
    assert not decoder.has_work()
    unproven = lost or end == "quarantine"
    assert len(decoder.free_blocks) == decoder.block_count - (HELD_BLOCKS if unproven else 0)
    if end == "quarantine":
        decoder.messenger.fail("a-00000000")
        decoder.steps(2)
    assert decoder.at_rest() == (not lost or end == "quarantine")
    after_all_limits(decoder, clock)
    assert decoder.at_rest()


@pytest.mark.parametrize("answers_lost", [0, 1, 3])
def test_should_ask_again_for_the_proof_that_was_lost(engine: EngineMaker, clock: Clock, answers_lost: int) -> None:
    decoder = with_clock(engine("kv_consumer"), clock)
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine("a-00000000")
    decoder.steps(2)
    assert decoder.ended["a-00000000"].name == "FINISHED_ERROR"
    decoder.messenger.drops += [Failed] * (1 + answers_lost)
    decoder.messenger.fail("a-00000000")
    decoder.steps(3)
    for _ in range(answers_lost + 1):
        assert len(decoder.free_blocks) == decoder.block_count - HELD_BLOCKS
        after_all_limits(decoder, clock)
    assert decoder.at_rest()
    assert len(decoder.messenger.of_kind("reportEnd")) == 1 + answers_lost


def test_should_not_use_pages_again_because_time_has_passed(engine: EngineMaker, clock: Clock) -> None:
    """The messenger has no proof: a prefiller that hangs may write for as long as it lives."""
    decoder = with_clock(engine("kv_consumer"), clock)
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine("a-00000000")
    decoder.steps(2)
    for asked in range(1, 6):
        after_all_limits(decoder, clock)
        assert len(decoder.free_blocks) == decoder.block_count - HELD_BLOCKS
        assert len(decoder.messenger.of_kind("reportEnd")) == asked
    decoder.messenger.fail("a-00000000")
    decoder.steps(2)
    assert decoder.at_rest()


@pytest.mark.parametrize("late", ["arrive", "fail"])
def test_should_use_pages_again_once_when_the_proof_crosses_the_question(
    engine: EngineMaker, clock: Clock, late: str
) -> None:
    decoder = with_clock(engine("kv_consumer"), clock)
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine("a-00000000")
    decoder.steps(2)
    clock.now += decoder.worker._worker._limits.unheard_seconds
    poll = decoder.messenger.poll
    decoder.messenger.poll = list
    getattr(decoder.messenger, late)("a-00000000")
    decoder.steps(2)
    assert len(decoder.messenger.of_kind("reportEnd")) == 1
    decoder.messenger.poll = poll
    decoder.steps(3)
    assert decoder.at_rest()


@pytest.mark.parametrize("late", ["arrive", "fail"])
def test_should_use_the_pages_again_when_the_end_comes_after_all(engine: EngineMaker, clock: Clock, late: str) -> None:
    decoder = with_clock(engine("kv_consumer"), clock)
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.step()
    after_all_limits(decoder, clock)
    assert decoder.ended["a-00000000"].name == "FINISHED_ERROR"
    assert len(decoder.free_blocks) == decoder.block_count - HELD_BLOCKS
    getattr(decoder.messenger, late)("a-00000000")
    decoder.steps(2)
    assert decoder.at_rest()


@pytest.mark.parametrize("broken", range(4))
def test_should_handle_the_events_behind_one_that_cannot_be(
    engine: EngineMaker, clock: Clock, broken: int, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = with_clock(engine("kv_consumer"), clock)
    names = [f"request-{index}-0000000{index}" for index in range(4)]
    for name in names:
        decoder.add(name, 100, remote_prefill())
    decoder.step()
    for name, end in zip(names, ("arrive", "fail", "arrive", "fail"), strict=True):
        getattr(decoder.messenger, end)(name)
    handle = decoder.worker._worker._on
    harmed = decoder.messenger.by_name.number(names[broken])

    def fault(event: Any) -> None:
        if getattr(event, "request", "") == harmed:
            raise OSError("a fault of ours")
        handle(event)

    decoder.worker._worker._on = fault
    decoder.steps(3)
    assert "a fault of ours" in caplog.text
    assert sorted(decoder.ended) == [name for index, name in enumerate(names) if index != broken]
    after_all_limits(decoder, clock)
    assert sorted(decoder.ended) == names
    assert not decoder.has_work()


def test_should_decode_the_events_behind_one_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    events: list[dict[str, Any]] = [
        {"event": "released", "request": "1"},
        {"event": "granted", "request": "1", "promptTokens": 5, "firstToken": 0, "contextKinds": []},
        {"event": "stopped", "request": "1", "reason": "r"},
        {"event": "prefilled", "transfer": "t", "promptDigest": ""},
        {"event": "connected", "host": "h", "port": 1, "incarnation": "i"},
        {"event": "disconnected", "host": "h", "port": 1},
        {"event": "arrived", "request": "1", "pages": 1},
        {"event": "failed", "request": "1", "reason": "r"},
        {"event": "quarantined", "request": "1", "reason": "r"},
        {"event": "offered", "request": "1", "heldTokens": 16, "reason": ""},
        {
            "event": "asked",
            "transfer": "t",
            "promptDigest": "d",
            "cacheSalt": "",
            "tokenCount": 1,
            "tokenIds": [1],
        },
        {"event": "timeline", "transfer": "t"},
        {"event": "log", "level": "info", "message": "m"},
    ]
    assert len(decode_events(events)) == len(KINDS)
    for index, whole in enumerate(events):
        for field in whole:
            broken = [
                *events[:index],
                {name: value for name, value in whole.items() if name != field},
                *events[index + 1 :],
            ]
            assert decode_events(broken) == decode_events([*events[:index], *events[index + 1 :]])
    assert decode_events([{"event": "of another version"}, events[0]]) == [Released("1")]
    assert "which this wheel does not know" in caplog.text


def test_should_give_the_workers_in_the_next_step_what_a_failed_one_did_not(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    half = decoder.own_scheduler._half

    class Broken(set[str]):
        def difference_update(self, *_: Any) -> None:
            half._loading_first = set()
            raise OSError("a fault of ours")

    half._loading_first = Broken()
    decoder.add("a-00000000", 700, remote_prefill())
    decoder.step()
    assert not isinstance(half._loading_first, Broken)
    assert not decoder.messenger.of_kind("fetch")
    decoder.step()
    assert len(decoder.messenger.of_kind("fetch")) == 1
    decoder.messenger.arrive("a-00000000")
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_notify_a_decoder_of_a_prompt_whose_step_cannot_be_read(
    engine: EngineMaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is preempted in that step is fenced all the same."""
    prefiller = engine("kv_producer", chunk_tokens=1024)
    half = sys.modules["kv_connector.vllm.scheduler_half"]
    prefiller.add("a-00000000", 700, remote_decode(), max_tokens=20)
    prefiller.step()
    prefiller.preempt("a-00000000")
    prefiller.add("b-00000000", 300, remote_decode(), max_tokens=20)

    def fault(_: Any) -> Any:
        raise OSError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(half, "scheduled", fault)
        prefiller.step()
    assert "a fault of ours" in caplog.text
    assert prefiller.messenger.fenced == [["a-00000000"]]
    assert {end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")} == {"failed"}


def test_should_fence_a_preempted_request_whatever_fails(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    """Its blocks are overwritten in the next pass."""
    prefiller = engine("kv_producer")
    prefiller.add("a-00000000", 700, remote_decode())
    prefiller.step()
    half = prefiller.own_scheduler._half

    def fault(*_: object) -> None:
        raise OSError("a fault of ours")

    half._chunks.restart = fault
    prefiller.preempt("a-00000000")
    prefiller.step()
    assert "a fault of ours" in caplog.text
    assert prefiller.messenger.fenced == [["a-00000000"]]
