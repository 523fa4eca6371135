"""What a pull is expected to take beside computing: measured steps and measured pulls, and nothing extrapolated."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from conftest import EngineMaker

SOURCE = (("127.0.0.1", 1),)
OTHER = (("127.0.0.1", 2),)
SECONDS_PER_TOKEN = 0.001


class World:
    def __init__(self, *, always: bool = False) -> None:
        rates, prices, rules = (
            importlib.import_module(f"kv_connector.{name}")
            for name in ("pulls.prefill_rate", "pulls.pull_prices", "vllm.pull_rules")
        )
        self.metadata = importlib.import_module("kv_connector.vllm.metadata")
        self.rates, self.steps, self.now_seconds = rates, 0, 100.0
        self.constants = prices
        self.rate = rates.PrefillRate(lambda: self.now_seconds)
        made = rules.PullRules("", "", always, 64, 0.1, 5.0)
        self.prices = prices.PullPrices(made, self.rate, lambda: self.now_seconds)

    def step(self, tokens: int, seconds: float) -> None:
        step = self.begin(tokens)
        self.now_seconds += seconds
        self.rate.step_over(step)

    def begin(self, tokens: int) -> int:
        self.steps += 1
        meta = self.metadata.StepMetadata(step=self.steps)
        self.rate.step_begins(meta, tokens)
        assert meta.reports_end == (tokens >= self.rates.MEASURED_TOKENS_MIN)
        return self.steps

    def measured(self) -> World:
        self.step(1000, 1000 * SECONDS_PER_TOKEN)
        return self


@pytest.fixture
def world(engine: EngineMaker) -> World:  # noqa: ARG001 - loads the release
    return World()


def test_should_measure_a_step_to_its_end_and_not_to_the_next_one(world: World) -> None:
    world.measured()
    world.now_seconds += 60
    assert world.rate.seconds_of(2000) == pytest.approx(2.0)


def test_should_measure_a_step_that_is_scheduled_ahead_from_the_end_of_the_one_before(world: World) -> None:
    for step in [world.begin(500), world.begin(500)]:
        world.now_seconds += 0.5
        world.rate.step_over(step)
    assert world.rate.seconds_of(500) == pytest.approx(0.5)


def test_should_take_no_decode_step_for_a_prefill(world: World) -> None:
    world.step(63, 1.0)
    assert world.rate.seconds_of(1) is None
    world.rate.step_over(0)  # of a step that was never scheduled


def test_should_forget_steps_whose_end_is_never_reported(world: World) -> None:
    lost = [world.begin(1000) for _ in range(world.rates.STEPS_IN_FLIGHT_MAX)]
    world.now_seconds += 100
    world.rate.step_over(lost[-2])
    assert world.rate.seconds_of(1) == pytest.approx(0.1)
    world.rate.step_over(lost[-1])
    assert not world.rate._in_flight


def test_should_pull_while_nothing_is_known(world: World) -> None:
    assert world.prices.is_worth(SOURCE, 1000)
    assert world.prices.ask_limit_seconds(1000) == world.constants.ASK_LIMIT_SECONDS
    assert world.prices.fetch_limit_seconds(1000) == 0
    world.prices.pulled(SOURCE, 1000, 10.0)
    assert world.prices.is_worth(SOURCE, 1000)


@pytest.mark.parametrize(
    ("tokens", "worth"), [(999, True), (1000, False), (1001, False), (1499, False), (1500, False), (1501, True)]
)
def test_should_not_pull_what_a_smaller_pull_has_shown_to_be_slower(world: World, tokens: int, worth: bool) -> None:
    """One of 1,000 tokens took as long as computing 1,500: of fewer tokens nothing is known, more may be faster."""
    world.measured().prices.pulled(SOURCE, 1000, 1500 * SECONDS_PER_TOKEN)
    assert world.prices.is_worth(SOURCE, tokens) is worth
    assert world.prices.is_worth(OTHER, tokens)


@pytest.mark.parametrize(("tokens", "worth"), [(999, True), (1000, False), (1874, False), (1876, True), (4000, True)])
def test_should_not_pull_where_its_price_is_known_and_higher(world: World, tokens: int, worth: bool) -> None:
    """A token takes 0.6 ms to pull and 1 ms to compute, but 1,250 are on the way. Of fewer than 1,000 nothing is."""
    world.measured()
    for size in (1000, 2000, 1000, 2000):
        world.prices.transfers.moved(SOURCE, size, size * 0.6 * SECONDS_PER_TOKEN)
    assert world.prices.is_worth(SOURCE, tokens)
    mark = world.prices.transfers.moves(SOURCE, 1250)
    assert world.prices.is_worth(SOURCE, tokens) is worth
    world.prices.transfers.over(SOURCE, 1250, mark)
    assert world.prices.is_worth(SOURCE, tokens)


@pytest.mark.parametrize("outcome", ["failed", "aborted"])
@pytest.mark.parametrize(("seconds", "is_slow"), [(0.0, False), (0.01, False), (0.9, False), (1.1, True), (30.0, True)])
def test_should_know_a_fetch_that_never_came_for_a_slow_one_though_its_client_has_left(
    world: World, outcome: str, seconds: float, is_slow: bool
) -> None:
    for tokens in (500, 1000, 500, 1000):
        world.prices.fetched(SOURCE, tokens, tokens * SECONDS_PER_TOKEN, 0.0, "arrived")
    for _ in range(6):
        world.prices.fetched(SOURCE, 1000, seconds, 0.0, outcome)
    price = world.prices.transfers.price(SOURCE, 1000)
    assert (price.seconds > 1.05) == is_slow, "an early end shows nothing"


def test_should_forget_a_slow_pull_after_a_time(world: World) -> None:
    world.measured().prices.pulled(SOURCE, 1000, 2.0)
    world.now_seconds += world.constants.KNOWN_SECONDS
    assert not world.prices.is_worth(SOURCE, 1000)
    world.now_seconds += 0.001
    assert world.prices.is_worth(SOURCE, 1000)


def test_should_keep_few_engines_and_few_pulls_of_each(world: World) -> None:
    constants: Any = world.constants
    world.measured().prices.pulled(OTHER, 1000, 2.0)
    for index in range(constants.SLOW_PULLS_MAX):
        world.prices.pulled(OTHER, 1000 + index, 0.0)
    assert world.prices.is_worth(OTHER, 1000)
    for port in range(constants.SOURCES_MAX + 5):
        world.prices.pulled((("127.0.0.1", port),), 1000, 2.0)
    assert len(world.prices._past) == constants.SOURCES_MAX
    assert world.prices.is_worth((("127.0.0.1", 0),), 1000), "named longest ago"


def test_should_wait_for_half_the_time_of_computing_at_most(world: World) -> None:
    world.measured()
    assert world.prices.ask_limit_seconds(100) == pytest.approx(0.05)
    assert world.prices.ask_limit_seconds(10_000) == world.constants.ASK_LIMIT_SECONDS
    assert world.prices.fetch_limit_seconds(100) == world.constants.PULL_LIMIT_SECONDS_MIN
    assert world.prices.fetch_limit_seconds(10_000) == pytest.approx(30.0)


def test_should_pull_always_where_that_is_wanted(engine: EngineMaker) -> None:  # noqa: ARG001 - loads the release
    world = World(always=True).measured()
    world.prices.pulled(SOURCE, 1000, 100.0)
    assert world.prices.is_worth(SOURCE, 1000)
    assert world.prices.ask_limit_seconds(1) == 5.0
    assert world.prices.fetch_limit_seconds(1000) == 0


@pytest.mark.parametrize("lost_share", [0.01, 0.3, 0.5])
@pytest.mark.parametrize("helpful_every", [0, 2, 20])
def test_should_lose_a_small_share_of_the_time_of_computing(
    world: World, lost_share: float, helpful_every: int
) -> None:
    """Prompts that lack 300 tokens, of which the other engine has none that are worth it, or has them now and then."""
    lost_seconds = computed_seconds = saved_seconds = 0.0
    asked = 0
    world.measured()
    for _ in range(2000):
        computing_seconds = 300 * SECONDS_PER_TOKEN
        computed_seconds += computing_seconds
        if not world.prices.may_wait(SOURCE, 300):
            world.prices.ended(SOURCE, 300, 0.0, 0)
            continue
        asked += 1
        seconds = lost_share * computing_seconds
        helps = helpful_every and asked % helpful_every == 0
        world.prices.ended(SOURCE, 300, seconds, 300 if helps else 0)
        saved_seconds += computing_seconds if helps else 0.0
        lost_seconds += seconds
    limits: Any = importlib.import_module("kv_connector.pulls.ask_budget")
    one_wait_seconds = lost_share * 300 * SECONDS_PER_TOKEN
    assert lost_seconds <= limits.LOST_SHARE * computed_seconds + saved_seconds + one_wait_seconds
    assert asked >= 0.9 * min(2000, 2000 * limits.LOST_SHARE / lost_share)
    if helpful_every == 2:
        assert asked >= 1980, "what helps every other time is asked for nearly every time"


def test_should_keep_an_account_for_each_engine_and_size(world: World) -> None:
    world.measured().prices.ended(SOURCE, 300, 0.1, 0)
    assert [world.prices.may_wait(SOURCE, tokens) for tokens in (255, 256, 511, 512)] == [True, False, False, True]
    assert world.prices.may_wait(OTHER, 300)


def test_should_not_live_long_on_what_was_saved_once(world: World) -> None:
    world.measured()
    for _ in range(20):
        world.prices.ended(SOURCE, 300, 0.0, 300)
    limits: Any = importlib.import_module("kv_connector.pulls.ask_budget")
    waits = 0
    while world.prices.may_wait(SOURCE, 300):
        world.prices.ended(SOURCE, 300, world.constants.ASK_LIMIT_SECONDS, 0)
        waits += 1
        assert waits <= limits.SAVED_SECONDS_MAX / world.constants.ASK_LIMIT_SECONDS + 2


def test_should_book_a_slow_pull_as_lost(world: World) -> None:
    world.measured().prices.ended(SOURCE, 300, 0.4, 300)
    assert not world.prices.may_wait(SOURCE, 300)


def test_should_wait_once_while_its_own_speed_is_unknown(world: World) -> None:
    world.prices.ended(SOURCE, 300, 0.01, 0)
    world.prices.ended(SOURCE, 300, 0.0, 0)
    assert not world.prices.may_wait(SOURCE, 300)
    world.measured()
    world.prices.ended(SOURCE, 300, 0.0, 0)
    assert world.prices.may_wait(SOURCE, 300)


def test_should_keep_a_limited_number_of_accounts(world: World) -> None:
    limits: Any = importlib.import_module("kv_connector.pulls.ask_budget")
    for port in range(limits.ACCOUNTS_MAX + 5):
        world.prices.ended((("127.0.0.1", port),), 300, 0.1, 0)
    assert len(world.prices._budget._seconds) == limits.ACCOUNTS_MAX


def test_should_always_wait_where_that_is_wanted(engine: EngineMaker) -> None:  # noqa: ARG001 - loads the release
    world = World(always=True).measured()
    world.prices.ended(SOURCE, 300, 10.0, 0)
    assert world.prices.may_wait(SOURCE, 300)


@pytest.mark.parametrize("prompts", [1, 8])
def test_should_wait_for_an_engine_whose_session_was_only_opening(world: World, prompts: int) -> None:
    """The first answer is late for all that ask for it at once, and later ones are not."""
    world.measured()
    for _ in range(prompts):
        world.prices.asked(SOURCE)
    world.now_seconds += 0.25
    for _ in range(prompts):
        world.prices.ended(SOURCE, 300, 0.25, 0)
    assert world.prices.may_wait(SOURCE, 300)
    world.prices.ended(OTHER, 300, 0.25, 0)
    assert not world.prices.may_wait(OTHER, 300), "it was not asked"


@pytest.mark.parametrize("heard", [False, True], ids=["silent", "answers"])
def test_should_book_waits_for_an_engine_once_it_is_known(world: World, heard: bool) -> None:
    """It has answered, or should have by now; a second first question makes it no newer."""
    world.measured().prices.asked(SOURCE)
    if heard:
        world.prices.answered(SOURCE, 0.01)
    else:
        world.now_seconds += world.constants.ACQUAINTANCE_SECONDS
    world.prices.asked(SOURCE)
    world.prices.ended(SOURCE, 300, 0.25, 0)
    assert not world.prices.may_wait(SOURCE, 300)


def test_should_keep_a_limited_number_of_known_engines(world: World) -> None:
    for port in range(world.constants.SOURCES_MAX + 5):
        world.prices.asked((("127.0.0.1", port),))
        world.prices.answered((("127.0.0.1", port),), 0.01)
    assert len(world.prices._new_until_seconds) == world.constants.SOURCES_MAX
