from __future__ import annotations

import pytest

from kv_connector.vllm.send_gate import SendGate

LIMIT_SECONDS = 120.0


class Clock:
    now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> SendGate:
    made = SendGate(LIMIT_SECONDS, clock)
    made.size(100)
    for request in ("a", "b", "c", "long"):
        made.queued(request)
    return made


def test_should_hold_back_what_would_go_beyond_half_of_the_pool(gate: SendGate) -> None:
    gate.holds("a", 30)
    assert not gate.holds_back("b", 20)
    assert gate.holds_back("b", 21)


def test_should_hold_back_nothing_while_nothing_waits_for_a_grant(gate: SendGate) -> None:
    assert not gate.holds_back("a", 100)
    gate.holds("a", 90)
    assert gate.holds_back("b", 1)
    gate.settled("a")
    assert not gate.holds_back("b", 100)


def test_should_not_hold_back_what_is_granted_or_not_to_be_sent(gate: SendGate) -> None:
    gate.holds("a", 50)
    gate.settled("b")
    assert not gate.holds_back("b", 50)
    assert not gate.holds_back("a stranger", 50)


@pytest.mark.parametrize("ends", ["settled", "gone", "preempted"])
def test_should_count_what_is_held_now(gate: SendGate, ends: str) -> None:
    gate.holds("a", 30)
    gate.holds("a", 40)
    gate.holds("b", 10)
    assert gate.holds_back("c", 1)
    match ends:
        case "settled":
            gate.settled("a")
        case "gone":
            gate.gone("a")
        case "preempted":
            gate.holds("a", 0)
    assert not gate.holds_back("c", 40)
    assert gate.holds_back("c", 41)


def test_should_not_let_short_prompts_overtake_a_long_one(gate: SendGate) -> None:
    gate.holds("a", 10)
    assert gate.holds_back("long", 60)
    assert gate.holds_back("b", 1)
    gate.gone("a")
    assert not gate.holds_back("long", 60)
    gate.holds("long", 60)
    gate.settled("long")
    assert not gate.holds_back("b", 1)


def test_should_let_go_of_those_behind_a_prompt_that_ends_in_the_queue(gate: SendGate) -> None:
    gate.holds("a", 10)
    assert gate.holds_back("long", 60)
    assert gate.holds_back("b", 1)
    gate.gone("long")
    assert not gate.holds_back("b", 1)


def test_should_hold_nothing_back_for_longer_than_its_limit(gate: SendGate, clock: Clock) -> None:
    gate.holds("a", 50)
    assert gate.holds_back("b", 10)
    clock.now_seconds += LIMIT_SECONDS - 1
    assert gate.holds_back("b", 10)
    clock.now_seconds += 1
    assert not gate.holds_back("b", 10)


def test_should_remember_nothing_in_the_end(gate: SendGate) -> None:
    gate.holds("a", 50)
    gate.holds_back("b", 10)
    gate.settled("never heard of")
    assert not gate.is_empty()
    for request in ("a", "b", "c", "long"):
        gate.gone(request)
    gate.settled("a")
    assert gate.is_empty()
