"""The states of a pair of SGLang engines, as one rank knows them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import pytest

from kv_connector.naming.pair_rules import PAIRS_MAX, PROBE_TOKENS_MIN, REFUTED_SECONDS, UNJUDGED_MAX, PairState
from kv_connector.runtime.commands import PrefillerAddress
from kv_connector.sglang.pair_states import Arrival, Pair, PairStates, Verdict, Wanted

FIRST = (PrefillerAddress("10.0.0.1", 7000), PrefillerAddress("10.0.0.1", 7001))
SECOND = (PrefillerAddress("10.0.0.2", 7000),)
LONG = PROBE_TOKENS_MIN
FINDING = "K of layer 0 differs by 1.7 of its largest number"
EQUAL, DIFFERENT, UNJUDGED = Verdict(True, 0.001), Verdict(True, 1.7, FINDING), Verdict(judged=False)


@dataclass
class World:
    """A clock, the engine's weights, and the sessions with messengers."""

    check: Any = "fail"
    now_seconds: float = 1000.0
    weights: str = ""
    sessions: int = 0
    pairs: PairStates = field(init=False)

    def __post_init__(self) -> None:
        self.pairs = PairStates(
            self.check,
            weights=lambda: self.weights,
            logger=logging.getLogger("pairs"),
            now_seconds=lambda: self.now_seconds,
        )

    def connect(self, incarnation: str, address: PrefillerAddress = FIRST[0]) -> None:
        self.sessions += 1
        self.pairs.connected(address, incarnation, self.sessions)

    def fetched(self, prefillers: tuple[PrefillerAddress, ...] = FIRST, adapter: str = "") -> Arrival:
        arrival = Arrival(adapter)
        assert not self.pairs.fetching(arrival, prefillers)
        return arrival

    def arrived(self, prefillers: tuple[PrefillerAddress, ...] = FIRST, adapter: str = "") -> Arrival:
        arrival = self.fetched(prefillers, adapter)
        arrival.sessions = self.sessions
        return arrival

    def judge(self, verdict: Verdict, *of: Any) -> Arrival:
        arrival = self.arrived(*of)
        assert self.pairs.wanted(arrival, LONG) is Wanted.COMPARE
        self.pairs.conclude(arrival, verdict)
        return arrival

    def wanted(self, *of: Any) -> Wanted:
        return self.pairs.wanted(self.arrived(*of), LONG)

    def state(self, prefillers: tuple[PrefillerAddress, ...] = FIRST) -> PairState:
        return self.pairs.state_of(Pair(prefillers, self.weights, ""))


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_prompt_that_is_long_enough_is_compared_and_none_after_it(world: World) -> None:
    assert world.pairs.wanted(world.arrived(), LONG - 1) is Wanted.NOTHING
    world.judge(EQUAL)
    assert world.state() is PairState.PROVEN
    assert world.wanted() is Wanted.NOTHING
    assert world.wanted(SECOND) is Wanted.COMPARE, "another prefiller is another pair"
    assert world.wanted(FIRST, "adapter") is Wanted.COMPARE
    before = world.arrived(SECOND)
    world.weights = "v2"
    assert world.wanted() is Wanted.COMPARE
    assert world.pairs.wanted(before, LONG) is Wanted.NOTHING, "its KV is that of other weights"


def test_a_refuted_pair_is_refused_before_its_fetch_and_in_its_batch(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    in_flight = world.arrived()
    world.judge(DIFFERENT)
    assert "refused from now on" in caplog.text
    assert world.pairs.wanted(in_flight, LONG) is Wanted.REFUSE
    assert world.pairs.wanted(in_flight, 0) is Wanted.REFUSE, "a short prompt's KV is as wrong"
    sentence = world.pairs.fetching(Arrival(), FIRST)
    assert sentence.startswith("the prefiller at 10.0.0.1:7000 and this engine compute different KV: " + FINDING)
    assert "last_token_check" in sentence
    assert not world.pairs.fetching(Arrival(), SECOND)


def test_a_refuted_pair_is_tried_again_after_a_minute(world: World) -> None:
    world.judge(DIFFERENT)
    world.now_seconds += REFUTED_SECONDS - 1
    assert world.pairs.fetching(Arrival(), FIRST)
    world.now_seconds += 1
    world.judge(EQUAL)
    assert world.state() is PairState.PROVEN


def test_warn_uses_the_kv_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = World("warn")
    arrival = world.judge(DIFFERENT)
    assert world.state() is PairState.REFUTED
    assert "is used because last_token_check is 'warn'" in caplog.text
    assert world.pairs.wanted(arrival, LONG) is Wanted.NOTHING
    assert not world.pairs.fetching(Arrival(), FIRST)


def test_off_compares_nothing() -> None:
    assert World("off").wanted() is Wanted.NOTHING


@pytest.mark.parametrize("verdict", [EQUAL, DIFFERENT])
def test_a_restarted_prefiller_is_unproven(world: World, verdict: Verdict) -> None:
    world.connect("a")
    world.judge(verdict)
    world.connect("a")
    assert world.state() is not PairState.UNPROVEN, "the same process"
    world.connect("b")
    assert world.state() is PairState.UNPROVEN
    world.judge(EQUAL)
    world.connect("c", FIRST[1])
    assert world.state() is PairState.PROVEN, "that rank's messenger was not known before"
    world.connect("d", FIRST[1])
    assert world.state() is PairState.UNPROVEN


def test_what_arrived_before_a_restart_proves_nothing_about_what_comes_after_it(world: World) -> None:
    world.connect("a")
    early = world.arrived()
    world.connect("b")
    world.pairs.conclude(early, EQUAL)
    assert world.state() is PairState.UNPROVEN
    world.pairs.conclude(early, DIFFERENT)
    assert world.state() is PairState.UNPROVEN


def test_a_fetch_that_began_before_a_restart_and_arrived_after_it_is_judged(world: World) -> None:
    world.connect("a")
    fetched = world.fetched()
    world.connect("b")
    fetched.sessions = world.sessions
    world.pairs.conclude(fetched, DIFFERENT)
    assert world.state() is PairState.REFUTED


def test_comparisons_that_come_to_nothing_are_tried_again_a_few_times(world: World) -> None:
    for _ in range(UNJUDGED_MAX):
        world.judge(UNJUDGED)
        assert world.state() is PairState.UNPROVEN
    assert world.wanted() is Wanted.NOTHING
    world.now_seconds += REFUTED_SECONDS
    world.judge(EQUAL)
    assert world.state() is PairState.PROVEN


def test_one_damaged_prompt_of_a_proven_pair_is_not_the_pair(world: World) -> None:
    world.judge(EQUAL)
    for expected in (PairState.PROVEN, PairState.REFUTED):
        world.pairs.conclude(world.arrived(), DIFFERENT)
        assert world.state() is expected


def test_pairs_are_forgotten_when_there_are_too_many(world: World) -> None:
    world.judge(EQUAL)
    for number in range(PAIRS_MAX):
        world.arrived((PrefillerAddress("10.0.0.3", number),))
    assert world.state() is PairState.UNPROVEN
    assert len(world.pairs._records) == PAIRS_MAX
