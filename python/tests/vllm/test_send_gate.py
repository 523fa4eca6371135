from __future__ import annotations

import pytest

from kv_connector.vllm.send_gate import FIRST_WAIT_SECONDS, SendGate

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
    return made


def begin(gate: SendGate, request: str, blocks: int) -> None:
    gate.queued(request, blocks)
    gate.begun(request)


def test_should_hold_back_what_would_go_beyond_half_of_the_pool(gate: SendGate) -> None:
    begin(gate, "a", 30)
    gate.queued("b", 20)
    assert not gate.holds_back("b")
    gate.queued("c", 21)
    assert gate.holds_back("c")


def test_should_leave_room_for_the_longest_prompt_in_the_queue(gate: SendGate) -> None:
    gate.queued("long", 75)
    gate.queued("fits", 25)
    assert not gate.holds_back("fits")
    gate.queued("fits not", 26)
    assert gate.holds_back("fits not")


def test_should_not_hold_back_what_is_granted_or_not_to_be_sent(gate: SendGate) -> None:
    begin(gate, "a", 50)
    gate.queued("b", 50)
    assert gate.holds_back("b")
    gate.settled("b")
    assert not gate.holds_back("b")
    assert not gate.holds_back("a stranger")


@pytest.mark.parametrize("ends", ["settled", "gone", "preempted"])
def test_should_count_what_is_held_now(gate: SendGate, ends: str) -> None:
    begin(gate, "a", 40)
    begin(gate, "b", 10)
    gate.queued("c", 40)
    assert gate.holds_back("c")
    getattr(gate, ends)("a")
    assert not gate.holds_back("c")


def test_should_not_let_short_prompts_overtake_a_long_one(gate: SendGate) -> None:
    begin(gate, "a", 10)
    gate.queued("long", 45)
    gate.queued("short", 1)
    assert gate.holds_back("long")
    assert gate.holds_back("short")
    gate.gone("a")
    assert not gate.holds_back("long")
    gate.begun("long")
    assert not gate.holds_back("short")


def test_should_let_go_of_those_behind_a_prompt_that_ends_in_the_queue(gate: SendGate) -> None:
    begin(gate, "a", 10)
    gate.queued("long", 60)
    gate.queued("b", 1)
    assert gate.holds_back("long")
    assert gate.holds_back("b")
    gate.gone("long")
    assert not gate.holds_back("b")


def test_should_hold_nothing_back_for_longer_than_its_limit(gate: SendGate, clock: Clock) -> None:
    begin(gate, "a", 50)
    gate.queued("b", 10)
    assert gate.holds_back("b")
    clock.now_seconds += LIMIT_SECONDS - 1
    assert gate.holds_back("b")
    clock.now_seconds += 1
    assert not gate.holds_back("b")


def test_should_wait_a_moment_only_where_nothing_waits_for_a_grant(gate: SendGate, clock: Clock) -> None:
    gate.queued("long", 90)
    gate.queued("other", 50)
    assert gate.holds_back("long")
    clock.now_seconds += FIRST_WAIT_SECONDS / 2
    gate.settled("other")
    clock.now_seconds += FIRST_WAIT_SECONDS / 2
    assert gate.holds_back("long"), "decoders grant what is in the queue"
    clock.now_seconds += FIRST_WAIT_SECONDS
    assert not gate.holds_back("long")


def test_should_remember_nothing_in_the_end(gate: SendGate) -> None:
    begin(gate, "a", 50)
    gate.queued("b", 10)
    gate.holds_back("b")
    gate.queued("c", 60)
    gate.settled("c")
    gate.begun("c")
    gate.settled("never heard of")
    gate.preempted("never heard of")
    gate.begun("never heard of")
    assert not gate.is_empty()
    gate.preempted("a")
    for request in ("a", "b", "c"):
        gate.gone(request)
    gate.settled("a")
    assert gate.is_empty()
