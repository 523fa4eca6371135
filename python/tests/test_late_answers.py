"""What an answer that does not come in time says of an engine: no more than that it takes longer than was waited."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.pull_prices import ASK_LIMIT_SECONDS, PullPrices
from kv_connector.pulls.transfer_price import SOURCES_MAX, TransferPrices

SECONDS_PER_TOKEN = 2e-5
"""Of the engine that asks: a prompt of 64 tokens waits for 0.64 ms, and long ones for 0.25 s."""
LONG_TOKENS = 40_000
ANSWER_SECONDS = 0.02


def source(number: int) -> Messengers:
    return (Address("127.0.0.1", number),)


GOOD, OTHER = source(1), source(2)


class World:
    """An engine that pulls from others, of which each answers after a time of its own."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0
        rate = PrefillRate(lambda: self.now_seconds)
        step: Any = SimpleNamespace(step=1, reports_end=False)
        rate.step_begins(step, 1000)
        self.now_seconds += 1000 * SECONDS_PER_TOKEN
        rate.step_over(1)
        rules: Any = SimpleNamespace(always=False, tokens_min=64, offer_limit_seconds=5.0)
        self.prices = PullPrices(rules, rate, lambda: self.now_seconds)

    def ask(self, of: Messengers, tokens: int, answer_seconds: float) -> bool:
        """Whether the engine answers in time."""
        limit_seconds = self.prices.ask_limit_seconds(tokens)
        self.prices.asked(of)
        is_late = answer_seconds > limit_seconds
        waited_seconds = min(answer_seconds, limit_seconds)
        self.now_seconds += waited_seconds
        if not is_late:
            self.prices.answered(of, waited_seconds, "not_held")
        self.prices.ended_as(of, "late" if is_late else "not_held", waited_seconds)
        return not is_late

    def pull(self, of: Messengers, tokens: int, answer_seconds: float) -> None:
        self.prices.answered(of, answer_seconds)
        self.prices.transfers.moved(of, tokens, tokens * SECONDS_PER_TOKEN / 10)


@pytest.mark.parametrize("seed", range(20))
def test_should_ask_a_good_engine_for_long_prompts_however_late_it_was_for_short_ones(seed: int) -> None:
    """Any client chooses how long its prompts are, and whether they are aborted."""
    world, drawn = World(), random.Random(seed)
    for of, tokens in itertools.product((GOOD, OTHER), (1000, LONG_TOKENS, 1000, LONG_TOKENS)):
        world.pull(of, tokens, ANSWER_SECONDS if of == GOOD else 2 * ANSWER_SECONDS)
    for _ in range(drawn.randint(1, 30)):
        tokens = drawn.randint(64, 900)
        if drawn.random() < 0.2:
            world.prices.asked(GOOD)
            world.prices.ended_as(GOOD, "aborted", drawn.uniform(0, 1))
        else:
            assert not world.ask(GOOD, tokens, ANSWER_SECONDS)
    price = world.prices.transfers.price(GOOD, LONG_TOKENS)
    assert price is not None
    assert price.answer_seconds == pytest.approx(ANSWER_SECONDS), "known by answers that came"
    assert world.prices.choose([OTHER, GOOD], LONG_TOKENS) == GOOD
    assert world.prices.choose([GOOD, OTHER], 100) == OTHER, "for a short prompt it is late"


@pytest.mark.parametrize("seed", range(40))
def test_should_rest_an_engine_for_prompts_that_would_wait_no_longer_than_others_did_in_vain(seed: int) -> None:
    """Whatever the order of late answers, the wait of each is one for which the engine rests."""
    world, drawn = World(), random.Random(seed)
    world.pull(OTHER, 1000, 0.0)
    waits = [10 ** drawn.uniform(-3.5, math.log10(ASK_LIMIT_SECONDS)) for _ in range(drawn.randint(1, 12))]
    for seconds in waits:
        world.prices.transfers.late(GOOD, seconds)
        world.now_seconds += drawn.uniform(0, 3)
    choose = world.prices.transfers.cheapest
    assert all(choose([GOOD, OTHER], 1000, seconds) == OTHER for seconds in waits)
    is_late, *_ = world.prices.transfers._rank(GOOD, 1000, 2 * max(waits))
    assert not is_late, "a wait of twice as long may be long enough"


@pytest.mark.parametrize("first", ["short", "long"])
def test_should_lengthen_no_rest_by_answers_that_were_late_for_short_prompts(first: str) -> None:
    prices, now_seconds = TransferPrices(lambda: now_seconds), 0.0
    order = [0.001] * 10 + [0.25] if first == "short" else [0.25] + [0.001] * 10
    for seconds in order:
        prices.late(GOOD, seconds)
    prices.moved(OTHER, 1000, 0.1)
    assert prices.cheapest([GOOD, OTHER], 1000, 0.25) == OTHER
    now_seconds = 61.0
    assert prices.cheapest([GOOD, OTHER], 1000, 0.25) == GOOD, "after one late answer for a minute"


@pytest.mark.parametrize("seed", range(20))
def test_should_forget_no_engine_for_names_that_clients_have_made_up(seed: int) -> None:
    """Nor one from which something is on its way: another one's numbers would be taken for its own."""
    world, drawn = World(), random.Random(seed)
    tokens = drawn.randint(100, 5000)
    world.pull(GOOD, tokens, ANSWER_SECONDS)
    transfers = world.prices.transfers
    begun, moving_seconds = [], drawn.uniform(0.1, 5.0)
    silent = source(3)
    for of in (GOOD, silent):
        world.prices.asked(of)
        begun.append((of, transfers.moves(of, tokens)))
    for number in range(drawn.randint(SOURCES_MAX, 3 * SOURCES_MAX)):
        world.prices.asked(source(1000 + number))
        world.prices.ended_as(source(1000 + number), "unreachable", 0.0)
    assert len(list(transfers.sources())) <= SOURCES_MAX
    world.now_seconds += moving_seconds
    for of, mark in begun:
        assert transfers.over(of, tokens, mark) == pytest.approx(moving_seconds)
        world.prices.ended_as(of, "arrived", 0.0)
    assert not transfers.is_moving()
    assert transfers.price(GOOD, tokens) is not None
    assert transfers.has_answered(GOOD)


def test_should_keep_a_limited_number_of_engines_whose_answers_come_late() -> None:
    world = World()
    for number in range(3 * SOURCES_MAX):
        world.prices.asked(source(number))
    for number in range(3 * SOURCES_MAX):
        world.prices.answered(source(number), 0.1)
        world.prices.ended_as(source(number), "not_held", 0.1)
    for number in range(3 * SOURCES_MAX, 5 * SOURCES_MAX):
        world.prices.asked(source(number))
        world.prices.ended_as(source(number), "unreachable", 0.1)
    assert len(world.prices._new_until_seconds) <= SOURCES_MAX
    assert len(world.prices._past) <= SOURCES_MAX
    assert len(list(world.prices.transfers.sources())) <= SOURCES_MAX
