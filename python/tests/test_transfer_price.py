"""The price of a transfer against links that are made up: it is near what they take, whatever order things come in."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.pulls.transfer_price import (
    BEYOND_LARGEST,
    DEAD_SECONDS,
    KNOWN_SECONDS,
    LATE_IN_A_ROW_MAX,
    OBSERVED_MAX,
    SOURCES_MAX,
    SPREAD_MIN,
    TRIES_MAX,
    TransferPrice,
    TransferPrices,
)


def source(number: int) -> Messengers:
    return (Address("127.0.0.1", number),)


A, B, C = source(1), source(2), source(3)


class World:
    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.now_seconds = 1000.0
        self.prices = TransferPrices(lambda: self.now_seconds)

    def transfer(self, of: Messengers, tokens: int, seconds: float, answer_seconds: float = 0.0) -> None:
        self.prices.answered(of, answer_seconds)
        mark = self.prices.moves(of, tokens)
        self.now_seconds += seconds
        self.prices.over(of, tokens, mark)
        self.prices.moved(of, tokens, seconds)

    def price(self, of: Messengers, tokens: int) -> TransferPrice:
        price = self.prices.price(of, tokens)
        assert price is not None
        return price

    def seconds(self, of: Messengers, tokens: int) -> float:
        price = self.price(of, tokens)
        parts = (price.open_seconds, price.answer_seconds, price.queue_seconds, price.move_seconds)
        assert all(math.isfinite(part) and part >= 0 for part in parts), price
        return price.seconds


def test_should_name_no_price_before_anything_was_seen() -> None:
    world = World()
    assert world.prices.price(A, 1000) is None
    world.prices.answered(A, 0.1)
    world.prices.late(A, 0.2)
    assert world.prices.price(A, 1000) is None, "an answer says nothing of tokens that move"
    assert not world.prices.knows(A, 1000)


LINKS = list(itertools.product((0.0, 0.002, 0.05), (1e-7, 1e-5, 1e-3), (0.0, 0.1, 0.3)))


@pytest.mark.parametrize(("fixed", "per_token", "noise"), LINKS)
def test_should_be_near_what_a_noisy_link_takes(fixed: float, per_token: float, noise: float) -> None:
    """Sizes are random over two orders of magnitude; one transfer in ten stalls for three seconds."""
    errors = []
    for seed in range(20):
        world = World(seed)
        for _ in range(OBSERVED_MAX):
            tokens = int(10 ** world.random.uniform(1.8, 3.8))
            stall_seconds = 3.0 if noise and world.random.random() < 0.1 else 0.0
            seconds = (fixed + per_token * tokens) * world.random.uniform(1 - noise, 1 + noise)
            world.transfer(A, tokens, seconds + stall_seconds)
        truth = fixed + per_token * 2000
        errors.append(abs(world.seconds(A, 2000) - truth) / truth)
    errors.sort()
    assert errors[len(errors) // 2] <= max(1e-6, noise), errors
    assert errors[-3] <= max(1e-6, 2.5 * noise), errors


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("factor", [0.1, 3.0, 30.0])
def test_should_follow_a_peer_that_becomes_slower_or_faster_within_a_few_transfers(seed: int, factor: float) -> None:
    world = World(seed)
    for _ in range(OBSERVED_MAX):
        world.transfer(A, 1000, 0.1 * world.random.uniform(0.95, 1.05))
    for _ in range(4):
        world.transfer(A, 1000, 0.1 * factor * world.random.uniform(0.95, 1.05))
    assert world.seconds(A, 1000) == pytest.approx(0.1 * factor, rel=0.1)


@pytest.mark.parametrize("seed", range(10))
def test_should_follow_a_rate_that_drifts(seed: int) -> None:
    world, per_token = World(seed), 1e-4
    for _ in range(60):
        per_token *= 1.03
        tokens = world.random.choice((200, 500, 1000, 2000))
        world.transfer(A, tokens, per_token * tokens)
    assert world.seconds(A, 1000) == pytest.approx(per_token * 1000, rel=0.3)


@pytest.mark.parametrize("place", range(OBSERVED_MAX))
def test_should_not_follow_a_single_stall(place: int) -> None:
    world = World()
    for index in range(OBSERVED_MAX):
        world.transfer(A, 1000, 3.0 if index == place else 0.1)
    if place:  # the first one alone is all that is known then, until others come
        assert world.seconds(A, 1000) == pytest.approx(0.1)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1000,), (1000, 1100), (100, 1000), (1000, 100)])
def test_should_go_through_the_few_transfers_there_are(count: int, sizes: Sequence[int]) -> None:
    world = World()
    for tokens in itertools.islice(itertools.cycle(sizes), count):
        world.transfer(A, tokens, 0.01 + tokens * 1e-4)
    last = sizes[(count - 1) % len(sizes)]
    assert world.seconds(A, last) == pytest.approx(0.01 + last * 1e-4, rel=0.1)


def test_should_expect_of_an_unknown_engine_what_the_others_take() -> None:
    world = World()
    for tokens in (100, 1000, 100, 1000):
        world.transfer(A, tokens, 0.01 + tokens * 1e-4, answer_seconds=0.005)
    price, known = world.price(B, 1000), world.price(A, 1000)
    assert (price.known, known.known) == (False, True)
    assert price.move_seconds == pytest.approx(known.move_seconds)
    assert price.answer_seconds == pytest.approx(0.005)


@pytest.mark.parametrize("tokens", [0, 1, 10**6, 10**12, 10**18])
def test_should_price_any_number_of_tokens(tokens: int) -> None:
    world = World()
    for size in (100, 1000, 100, 1000):
        world.transfer(A, size, 0.01 + size * 1e-4)
    assert world.seconds(A, tokens) == pytest.approx(0.01 + tokens * 1e-4 if tokens else 0.0)
    assert not world.price(A, tokens).known
    largest = int(BEYOND_LARGEST * 1000)
    assert [world.price(A, each).known for each in (99, 100, largest, largest + 1)] == [False, True, True, False]


@pytest.mark.parametrize("tokens", [64, 1000, 10**6])
def test_should_know_little_beyond_transfers_of_one_size(tokens: int) -> None:
    """What part of them is fixed is not known, so a larger one may take hardly more."""
    world = World()
    for _ in range(4):
        world.transfer(A, tokens, 0.1)
    largest = int(SPREAD_MIN * tokens)
    sizes = (tokens - 1, tokens, largest, largest + 1)
    assert [world.price(A, each).known for each in sizes] == [False, True, True, False]


def test_should_have_a_slope_that_is_not_negative_whatever_was_seen() -> None:
    world = World()
    for tokens in (100, 1000, 100, 1000):
        world.transfer(A, tokens, 1.0 - tokens * 1e-4)
    assert 0 <= world.seconds(A, 10) <= world.seconds(A, 100) <= world.seconds(A, 10**9)


@pytest.mark.parametrize("seed", range(30))
def test_should_stay_finite_and_grow_with_the_tokens_for_any_transfers(seed: int) -> None:
    world = World(seed)
    for _ in range(world.random.randint(1, 60)):
        of = source(world.random.randint(1, 3))
        act = world.random.randrange(7)
        tokens, seconds = int(10 ** world.random.uniform(0, 6)), world.random.expovariate(10)
        if act == 0:
            world.prices.lost(of)
        elif act == 1:
            world.prices.late(of, seconds)
        elif act == 2:
            world.prices.over(of, tokens, world.random.uniform(-1, 1))
        elif act == 3:
            world.prices.moves(of, tokens)
        elif act == 4:
            world.now_seconds += world.random.choice((1.0, KNOWN_SECONDS / 2, 2 * KNOWN_SECONDS))
        else:
            world.transfer(of, tokens, world.random.choice((0.0, seconds)), seconds)
        if world.prices.price(of, 1) is not None:
            sizes = sorted(int(10 ** world.random.uniform(0, 9)) for _ in range(5))
            seconds_of = [world.seconds(of, size) for size in sizes]
            assert seconds_of == sorted(seconds_of)
        chosen = world.prices.cheapest([A, B, C], 100)
        assert chosen is None or not world.prices.is_dead(chosen)


def test_should_wait_for_what_is_on_its_way_already() -> None:
    world = World()
    for tokens in (100, 1000, 100, 1000):
        world.transfer(A, tokens, tokens * 1e-4)
    mark = world.prices.moves(A, 5000)
    assert world.price(A, 1000).queue_seconds == pytest.approx(0.5)
    for _ in range(2):  # an end too many is none
        world.prices.over(A, 5000, mark)
        assert world.price(A, 1000).queue_seconds == 0


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("at_once", [1, 2, 4, 8])
def test_should_know_what_a_transfer_takes_alone_by_those_that_share_a_link(at_once: int, seed: int) -> None:
    """Up to so many transfers share a link of 10,000 tokens a second evenly, and begin at any moment."""
    world, left, seen = World(seed), {}, 0
    tokens_per_second, step_seconds = 10_000.0, 0.001
    while seen < 30:
        if len(left) < at_once and world.random.random() < 0.1:
            tokens = world.random.randint(500, 4000)
            left[object()] = [float(tokens), tokens, world.prices.moves(A, tokens)]
        world.now_seconds += step_seconds
        moving = sum(tokens for _, tokens, _ in left.values())
        for name, (still, tokens, mark) in list(left.items()):
            still -= tokens_per_second * step_seconds * tokens / moving
            left[name][0] = still
            if still <= 0:
                del left[name]
                world.prices.moved(A, tokens, world.prices.over(A, tokens, mark))
                seen += 1
    fit = world.prices.fit(A)
    assert fit is not None
    assert fit.seconds_of(2000) == pytest.approx(0.2, rel=0.1)


def test_should_add_the_opening_of_a_session_only_where_there_is_none() -> None:
    world = World()
    world.prices.answered(A, 0.3)
    for _ in range(4):
        world.transfer(A, 100, 0.1, answer_seconds=0.01)
    price = world.price(A, 100)
    assert (price.open_seconds, price.answer_seconds) == (0.0, pytest.approx(0.01))
    for without in (B, A):
        world.prices.lost(A)
        assert world.price(without, 100).open_seconds == pytest.approx(0.29)


def test_should_forget_what_was_seen_long_ago() -> None:
    world = World()
    world.transfer(A, 100, 0.1)
    world.now_seconds += KNOWN_SECONDS
    assert world.prices.knows(A, 100)
    world.now_seconds += 0.001
    assert not world.prices.knows(A, 100)
    assert world.prices.price(A, 100) is None


def test_should_forget_the_engines_used_longest_ago() -> None:
    world = World()
    for number in range(1, SOURCES_MAX + 3):
        world.prices.late(source(number), 0.1)
    kept = list(world.prices.sources())
    assert (len(kept), kept[0]) == (SOURCES_MAX, source(3))


# ---- which of several


def test_should_take_the_first_named_of_those_that_nothing_is_known_of() -> None:
    world = World()
    assert world.prices.cheapest([B, A], 1000) == B
    assert world.prices.cheapest([A], 1000) == A
    assert world.prices.cheapest([], 1000) is None


@pytest.mark.parametrize("order", list(itertools.permutations((A, B, C))))
@pytest.mark.parametrize("seed", range(3))
def test_should_choose_the_cheapest_after_each_was_tried_once(order: Sequence[Messengers], seed: int) -> None:
    """200 prompts of random sizes against the truth: B is the cheapest of three noisy links."""
    truth = {A: (0.002, 3e-4), B: (0.004, 1e-4), C: (0.05, 2e-4)}
    world, right = World(seed), 0
    for _ in range(200):
        tokens = world.random.choice((256, 512, 1024, 2048))
        chosen = world.prices.cheapest(order, tokens)
        assert chosen is not None
        right += chosen == min(truth, key=lambda each: truth[each][0] + truth[each][1] * tokens)
        fixed, per_token = truth[chosen]
        world.transfer(chosen, tokens, (fixed + per_token * tokens) * world.random.uniform(0.9, 1.1))
    assert right >= 190, right


def test_should_go_to_another_engine_once_the_cheapest_has_become_slow() -> None:
    world = World()
    for _ in range(5):
        world.transfer(A, 1000, 0.1)
        world.transfer(B, 1000, 0.2)
    assert world.prices.cheapest([B, A], 1000) == A
    for _ in range(3):
        world.transfer(A, 1000, 1.0)
    assert world.prices.cheapest([B, A], 1000) == B


def test_should_go_to_another_engine_while_much_is_on_its_way_from_the_cheapest() -> None:
    world = World()
    for tokens in (500, 1000, 500, 1000):
        world.transfer(A, tokens, tokens * 1e-4)
        world.transfer(B, tokens, tokens * 2e-4)
    world.prices.moves(A, 2000)
    assert world.prices.cheapest([A, B], 1000) == B


def test_should_choose_none_that_is_known_to_be_dead() -> None:
    world = World()
    for _ in range(5):
        world.transfer(A, 1000, 0.1)
        world.transfer(B, 1000, 0.2)
    world.prices.lost(A)
    assert world.prices.cheapest([A, B], 1000) == B
    world.prices.lost(B)
    assert world.prices.cheapest([A, B], 1000) is None
    world.now_seconds += DEAD_SECONDS
    assert world.prices.cheapest([A, B], 1000) == A, "tried again, since engines come back"
    world.prices.lost(A)
    world.prices.answered(A, 0.1)
    assert not world.prices.is_dead(A), "it has answered since"


def test_should_go_to_another_engine_while_one_does_not_answer_in_time() -> None:
    world = World()
    for _ in range(5):
        world.transfer(A, 1000, 0.1)
        world.transfer(B, 1000, 0.2)
    for _ in range(5):
        world.prices.late(A, 0.25)
    assert world.prices.cheapest([A, B], 1000) == B


@pytest.mark.parametrize("tokens", [100, 1000, 5000])
def test_should_take_a_transfer_that_never_came_for_a_slow_one_and_not_for_a_fast_one(tokens: int) -> None:
    world = World()
    world.prices.stalled(A, tokens, 5.0)
    assert world.prices.price(A, tokens) is None, "how long it would have taken is not known"
    for size in (100, 1000, 100, 1000, 100):
        world.transfer(A, size, size * 1e-4)
        world.transfer(B, size, size * 2e-4)
    for _ in range(5):
        world.prices.stalled(A, tokens, 1e-6)  # the engine has ended at once
    assert world.prices.cheapest([B, A], 1000) == A
    for _ in range(5):
        world.prices.stalled(A, tokens, 5.0)
    assert world.prices.cheapest([A, B], 1000) == B


def test_should_try_an_engine_that_moves_nothing_a_few_times_only() -> None:
    """An engine that holds nothing, or whose first transfer proves the pair, has no price yet."""
    world = World()
    for _ in range(5):
        world.transfer(A, 1000, 0.1)
    tries = 0
    while world.prices.cheapest([A, B], 1000) == B:
        world.prices.answered(B, 0.01)
        tries += 1
    assert tries == TRIES_MAX


def test_should_try_an_unknown_engine_with_one_prompt_at_a_time() -> None:
    world = World()
    world.transfer(A, 1000, 0.1)
    assert world.prices.cheapest([A, B], 1000) == B
    world.prices.moves(B, 1000)
    assert world.prices.cheapest([A, B], 1000) == A


@pytest.mark.parametrize("late_count", [1, 2, 3, 10, 5000])
def test_should_rest_an_engine_longer_the_more_often_it_was_late(late_count: int) -> None:
    world = World()
    for _ in range(late_count):
        world.prices.late(B, 0.1)
    rested_seconds = KNOWN_SECONDS * 2 ** min(late_count - 1, LATE_IN_A_ROW_MAX)
    world.now_seconds += rested_seconds - 1
    world.transfer(A, 1000, 0.1)
    assert world.prices.cheapest([B, A], 1000) == A
    assert world.prices.cheapest([B], 1000) == B
    world.now_seconds += 1
    assert world.prices.cheapest([B, A], 1000) == B, "it is tried again"
    world.prices.late(B, 0.1)
    world.prices.answered(B, 0.1)
    assert world.prices.cheapest([B, A], 1000) == B, "it has answered since"


def test_should_try_no_engine_whose_question_is_open() -> None:
    world = World()
    world.transfer(A, 1000, 0.1)
    for _ in range(2):
        assert world.prices.cheapest([A, B], 1000) == B
        world.prices.asked(B)
        assert world.prices.cheapest([A, B], 1000) == A, "before it has answered"
        world.prices.question_over(B)
