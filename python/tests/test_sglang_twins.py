"""Which prompts must not be sent from the pages that their pass computes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kv_connector.sglang.twins import Computed, Twins

PAGE_TOKENS = 4
ABCDEFGH = range(100, 132)
"""Eight pages."""


@dataclass(eq=False)
class Prompt:
    left: bool = False

    def leave_to_send(self) -> None:
        self.left = True


@dataclass(eq=False)
class Batches:
    """One batch after another, as SGLang has them in flight."""

    in_flight: int = 1
    twins: Twins = field(init=False)

    def __post_init__(self) -> None:
        self.twins = Twins(PAGE_TOKENS, self.in_flight)

    def run(self, *parts: Computed) -> list[bool]:
        self.twins.leave_to_send(parts)
        return [part.owner.left for part in parts]


def part(
    tokens: Sequence[int], first: int = 0, end: int | None = None, owner: Prompt | None = None, salt: str = ""
) -> Computed:
    end = len(tokens) if end is None else end
    return Computed(tokens, (salt,), first, end, len(tokens) - 1, owner or Prompt())


def other(tokens: Sequence[int], same: int) -> list[int]:
    """A prompt with the same beginning."""
    return [*tokens[:same], *(token + 500 for token in tokens[same:])]


def test_should_send_early_what_nothing_else_computes() -> None:
    assert Batches().run(part(ABCDEFGH), part(other(ABCDEFGH, 0))) == [False, False]


@pytest.mark.parametrize(("same", "twins"), [(3, False), (4, True), (9, True), (32, True)])
def test_should_leave_two_prompts_of_one_batch_with_the_same_first_page(same: int, twins: bool) -> None:
    assert Batches().run(part(ABCDEFGH), part(other(ABCDEFGH, same))) == [twins, twins]


def test_should_let_prompts_go_on_early_behind_the_same_cached_beginning() -> None:
    assert Batches().run(part(ABCDEFGH, 16), part(other(ABCDEFGH, 16), 16)) == [False, False]


def test_should_leave_prompts_that_compute_the_same_page_from_different_beginnings() -> None:
    assert Batches().run(part(ABCDEFGH, 0), part(other(ABCDEFGH, 20), 16)) == [True, True]


def test_should_not_mind_a_page_that_the_other_one_computes_later() -> None:
    assert Batches().run(part(ABCDEFGH, 0, 16), part(other(ABCDEFGH, 28), 16)) == [False, False]


def test_should_distinguish_prompts_of_different_salts() -> None:
    assert Batches().run(part(ABCDEFGH, salt="a"), part(ABCDEFGH, salt="b")) == [False, False]


def test_should_look_at_batches_whose_results_are_not_in_the_cache_yet() -> None:
    batches, first = Batches(), part(ABCDEFGH)
    assert batches.run(first) == [False]
    assert batches.run(part(ABCDEFGH)) == [True]
    assert first.owner.left, "its next pass may compute what the second one has put into the cache by then"
    assert batches.run(part(other(ABCDEFGH, 0))) == [False]
    assert batches.run(part(ABCDEFGH)) == [False], "the first two are in the cache, and would have been matched"


def test_should_not_take_the_next_pass_of_a_prompt_for_its_twin() -> None:
    batches, owner = Batches(), Prompt()
    assert batches.run(part(ABCDEFGH, 0, 16, owner)) == [False]
    assert batches.run(part(ABCDEFGH, 16, 28, owner)) == [False]


@pytest.mark.parametrize(
    ("length", "first", "left"), [(32, 28, True), (31, 28, True), (30, 24, False), (33, 28, False)]
)
def test_should_leave_a_prompt_that_was_matched_as_far_as_sglang_looks(length: int, first: int, left: bool) -> None:
    assert Batches().run(part([*ABCDEFGH, 7][:length], first)) == [left]


def test_should_leave_no_twin_in_drawn_batches_of_a_cache_as_sglangs() -> None:
    """Against a cache that keeps the first page it is given for each beginning, as SGLang's does."""
    draw = random.Random(3)
    freed = 0
    for _ in range(150):
        batches, cache = Batches(in_flight=draw.randint(1, 2)), dict[tuple[int, ...], object]()
        waiting: list[list[Computed]] = []
        for _ in range(8):
            batch = [drawn(draw, cache) for _ in range(draw.randint(1, 3))]
            batches.run(*batch)
            waiting.append(batch)
            while len(waiting) > batches.in_flight:
                freed += into_cache(waiting.pop(0), cache)
    assert freed > 50, "no cache ever had a page already"


def drawn(draw: random.Random, cache: dict[tuple[int, ...], object]) -> Computed:
    pages = [draw.randint(1, 2)] * draw.randint(1, 3) + [draw.randint(1, 3) for _ in range(draw.randint(0, 3))]
    tokens = [page * 10 + k for page in pages for k in range(PAGE_TOKENS)] + [9] * draw.randint(0, 2)
    matched, limit = 0, len(tokens) - 1
    while matched + PAGE_TOKENS <= limit and tuple(tokens[: matched + PAGE_TOKENS]) in cache:
        matched += PAGE_TOKENS
    return part(tokens, matched)


def into_cache(batch: list[Computed], cache: dict[tuple[int, ...], object]) -> int:
    """Returns how many pages were freed; none may be of a prompt that leaves early."""
    freed = 0
    for computed in batch:
        for end in range(computed.first_token + PAGE_TOKENS, len(computed.tokens) + 1, PAGE_TOKENS):
            beginning = tuple(computed.tokens[:end])
            if cache.setdefault(beginning, computed.owner) is not computed.owner:
                assert computed.owner.left, (list(computed.tokens), end)
                freed += 1
    return freed
