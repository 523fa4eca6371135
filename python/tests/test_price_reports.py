"""What the messenger gets to show of prices: what is new, now and then, in numbers that fit."""

from __future__ import annotations

import itertools
import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.price_reports import INTERVAL_SECONDS, NAME_LENGTH_MAX, REPORTED_MAX, PriceReports
from kv_connector.pulls.transfer_price import DEAD_SECONDS, KNOWN_SECONDS, TransferPrices
from kv_connector.runtime.commands import Prices, encode


def source(number: int) -> Messengers:
    return (Address("fd00::7", number), Address("fd00::7", 9))


class World:
    def __init__(self) -> None:
        self.now_seconds = 1000.0
        self.transfers = TransferPrices(lambda: self.now_seconds)
        self.rate = PrefillRate(lambda: self.now_seconds)
        self.reports = PriceReports(self.transfers, self.rate, lambda: self.now_seconds)

    def computes(self, tokens: int, seconds: float) -> None:
        step: Any = SimpleNamespace(step=1, reports_end=False)
        self.rate.step_begins(step, tokens)
        self.now_seconds += seconds
        self.rate.step_over(1)

    def due(self) -> Prices:
        self.now_seconds += INTERVAL_SECONDS
        prices = self.reports.due()
        assert prices is not None
        return prices


@pytest.fixture
def world() -> World:
    return World()


def test_should_report_nothing_before_anything_was_seen(world: World) -> None:
    assert world.reports.due() is None
    world.computes(1000, 0.5)
    assert world.reports.due() is None, "no request has named another engine"
    world.transfers.asked(source(7))
    assert world.due().compute_picos_per_token == 500_000_000


def test_should_report_each_part_of_a_price(world: World) -> None:
    world.computes(1000, 0.5)
    for tokens in (100, 1000, 100, 1000):
        world.transfers.answered(source(7), 0.003)
        world.transfers.moved(source(7), tokens, 0.01 + tokens * 1e-4)
    world.transfers.moves(source(7), 500)
    (price,) = world.due().sources
    assert json.loads(json.dumps(price, default=encode)) == {
        "source": "[fd00::7]:7",
        "deadMillis": 0,
        "openMicros": 0,
        "answerMicros": 3000,
        "queueMicros": 50_000,
        "fixedMicros": 10_000,
        "picosPerToken": 100_000_000,
        "tokensMin": 100,
        "tokensMax": 2000,
        "knownMillis": round(1000 * (KNOWN_SECONDS - INTERVAL_SECONDS)),
    }
    assert world.due().compute_picos_per_token == 500_000_000


def test_should_report_what_is_new_once_a_second_at_most(world: World) -> None:
    world.transfers.moved(source(7), 100, 0.1)
    assert world.reports.due() is not None
    world.transfers.moved(source(7), 100, 0.2)
    assert world.reports.due() is None
    world.now_seconds += INTERVAL_SECONDS
    assert world.reports.due() is not None
    world.now_seconds += INTERVAL_SECONDS
    assert world.reports.due() is None, "nothing is new"
    world.computes(1000, 0.5)
    world.now_seconds += INTERVAL_SECONDS
    assert world.reports.due() is not None


def test_should_report_what_is_on_its_way_for_as_long_as_it_is(world: World) -> None:
    world.transfers.moved(source(7), 100, 0.1)
    mark = world.transfers.moves(source(7), 100)
    for _ in range(3):
        assert world.due().sources[0].queue_micros > 0
    world.transfers.over(source(7), 100, mark)
    assert world.due().sources[0].queue_micros == 0
    world.now_seconds += INTERVAL_SECONDS
    assert world.reports.due() is None


def test_should_report_a_guess_as_one_and_a_dead_engine_as_dead(world: World) -> None:
    world.transfers.moved(source(7), 100, 0.1)
    world.transfers.answered(source(8), 0.1)
    world.transfers.lost(source(8))
    known, guessed = world.due().sources
    assert (known.dead_millis, known.tokens_min) == (0, 100)
    assert guessed.dead_millis == 1000 * (DEAD_SECONDS - INTERVAL_SECONDS)
    assert (guessed.tokens_min, guessed.tokens_max, guessed.known_millis) == (0, 0, 0)


def test_should_report_the_engines_used_last(world: World) -> None:
    for number in range(1, REPORTED_MAX + 3):
        world.transfers.moved(source(number), 100, 0.1)
    named = [price.source for price in world.due().sources]
    assert named == [f"[fd00::7]:{number}" for number in range(3, REPORTED_MAX + 3)]


def test_should_show_no_engine_that_has_only_been_named(world: World) -> None:
    world.transfers.moved(source(7), 100, 0.1)
    world.transfers.asked(source(8))
    world.transfers.late(source(8), 0.1)
    world.transfers.asked(source(9))
    world.transfers.lost(source(9))
    assert [price.source for price in world.due().sources] == ["[fd00::7]:7"]


@pytest.mark.parametrize("lists", list(itertools.permutations([1, 2, 3])))
def test_should_show_an_engine_once_however_many_of_its_messengers_are_named(world: World, lists: list[int]) -> None:
    messengers = [Address("10.0.0.7", port) for port in (1, 2, 3)]
    for count in lists:
        world.transfers.moved(tuple(messengers[:count]), 100 * count, 0.1)
    (price,) = world.due().sources
    assert (price.source, price.tokens_min) == ("10.0.0.7:1", 100 * lists[-1]), "as it was named last"


@pytest.mark.parametrize(
    "host", ["a" * 295, "a" * 400, "\N{GRINNING FACE}" * 150, "h\N{LATIN SMALL LETTER E WITH ACUTE}"]
)
def test_should_show_no_name_that_the_messenger_would_not_take(world: World, host: str) -> None:
    world.transfers.moved(source(7), 100, 0.1)
    world.transfers.moved((Address(host, 14579),), 100, 0.1)
    assert [price.source for price in world.due().sources] == ["[fd00::7]:7"]
    assert NAME_LENGTH_MAX == 300, "as in CommandReader"


@pytest.mark.parametrize("seed", range(20))
def test_should_report_numbers_that_every_reader_has(seed: int) -> None:
    world, chance = World(), random.Random(seed)
    for _ in range(30):
        tokens, seconds = int(10 ** chance.uniform(0, 12)), 10 ** chance.uniform(-12, 12)
        world.transfers.moved(source(chance.randint(1, 3)), tokens, seconds)
        world.transfers.late(source(chance.randint(1, 3)), seconds)
        world.transfers.moves(source(chance.randint(1, 3)), tokens)
    world.rate._seconds_per_token = 10 ** chance.uniform(-12, 12)
    prices = json.loads(json.dumps(world.due(), default=encode))
    numbers = [prices["computePicosPerToken"]]
    numbers += [number for price in prices["sources"] for name, number in price.items() if name != "source"]
    assert all(type(number) is int and 0 <= number <= 2**53 for number in numbers)
    assert all(price[name] < 2**31 for price in prices["sources"] for name in ("tokensMin", "tokensMax"))
