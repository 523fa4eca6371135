from __future__ import annotations

import pytest

from kv_connector.vllm.fetch_gate import FetchGate

LIMIT_SECONDS = 300.0
POOL_BLOCKS = 100
LONGEST_BLOCKS = 40


class Clock:
    now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> FetchGate:
    made = FetchGate(LONGEST_BLOCKS, LIMIT_SECONDS, clock)
    made.size(POOL_BLOCKS)
    return made


def fetch(gate: FetchGate, request: str, blocks: int) -> None:
    gate.queued(request, f"t-{request}", blocks)
    gate.begun(request)


def test_should_leave_room_for_the_longest_prompt_beside_what_is_not_computed(gate: FetchGate) -> None:
    fetch(gate, "a", 30)
    gate.queued("fits", "t-fits", 30)
    gate.queued("fits not", "t-fits-not", 31)
    assert not gate.holds_back("fits")
    assert gate.holds_back("fits not")


def test_should_let_in_what_is_computed_however_full_the_pool_is(gate: FetchGate) -> None:
    fetch(gate, "a", 60)
    gate.queued("b", "t-b", 40)
    assert gate.holds_back("b")
    gate.computed(["t-c", "t-b"])
    assert not gate.holds_back("b")
    gate.begun("b")
    gate.queued("c", "t-c", 1)
    gate.gone("a")
    gate.queued("d", "t-d", 60)
    assert not gate.holds_back("d"), "what was computed when it got its pages is not counted"


def test_should_count_until_the_kv_is_there(gate: FetchGate) -> None:
    fetch(gate, "a", 60)
    gate.queued("b", "t-b", 1)
    assert gate.holds_back("b")
    gate.gone("a")
    assert not gate.holds_back("b")


def test_should_hold_back_what_is_longer_than_the_rest_of_the_pool_until_it_is_computed(gate: FetchGate) -> None:
    gate.queued("a", "t-a", 61)
    assert gate.holds_back("a")
    gate.computed(["t-a"])
    assert not gate.holds_back("a")


def test_should_leave_no_room_for_a_longest_prompt_that_the_pool_could_never_have(clock: Clock) -> None:
    gate = FetchGate(LONGEST_BLOCKS, LIMIT_SECONDS, clock)
    gate.size(LONGEST_BLOCKS - 1)
    gate.queued("a", "t-a", 20)
    gate.queued("b", "t-b", 20)
    assert not gate.holds_back("a")
    gate.begun("a")
    assert gate.holds_back("b"), "the pool has 39"
    of_one_request = FetchGate(LONGEST_BLOCKS, LIMIT_SECONDS, clock)
    of_one_request.size(LONGEST_BLOCKS)
    of_one_request.queued("a", "t-a", 1)
    assert of_one_request.holds_back("a"), "a longer one may be computed meanwhile"


def test_should_let_in_alone_what_no_prefiller_hears_of_before(gate: FetchGate) -> None:
    gate.queued("decoder first", None, 90)
    assert not gate.holds_back("decoder first")
    gate.begun("decoder first")
    gate.queued("another", None, 1)
    assert gate.holds_back("another")


def test_should_have_computed_here_what_never_leaves_room_beside_requests_that_came_to_both(gate: FetchGate) -> None:
    gate.queued("too long", None, 61)
    gate.queued("fits", None, 60)
    assert not gate.why_here("too long"), "no prefiller holds a prompt that waits for pages here"
    gate.queued("both", "t-both", 1)
    assert gate.why_here("too long")
    assert not gate.why_here("fits")
    assert not gate.why_here("both")
    gate.gone("both")
    gate.gone("too long")
    gate.queued("later", None, 61)
    assert gate.why_here("later"), "the next one may have been computed before this decoder hears of it"


def test_should_not_wait_for_a_word_that_another_request_of_the_transfer_has_taken(gate: FetchGate) -> None:
    gate.queued("one", "t", 60)
    gate.queued("other", "t", 60)
    gate.begun("one")
    assert not gate.holds_back("other")


def test_should_hold_back_within_a_limit(gate: FetchGate, clock: Clock) -> None:
    gate.queued("a", "t-a", 90)
    clock.now_seconds += LIMIT_SECONDS - 1
    assert gate.holds_back("a")
    clock.now_seconds += 1
    assert not gate.holds_back("a")


def test_should_not_hold_back_strangers(gate: FetchGate) -> None:
    fetch(gate, "a", 60)
    assert not gate.holds_back("refused, or plain")


def test_should_forget_what_is_over(gate: FetchGate) -> None:
    fetch(gate, "a", 30)
    gate.queued("b", "t", 30)
    gate.queued("c", "t", 30)
    assert not gate.is_empty()
    for request in ("a", "b", "c", "c", "an unknown one"):
        gate.gone(request)
    assert gate.is_empty()
