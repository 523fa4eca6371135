"""Pulls of engines with several ranks: what all caches hold is right and equal, whichever rank is late, or fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("sglang_plugins")

PROMPT = list(range(1, 42))
STORIES = 60
STEPS_MAX = 60


@contextmanager
def teams(count: int = 2, page_tokens: int = 4) -> Iterator[Any]:
    from pull_ranks_world import Teams

    made = Teams(count, page_tokens)
    try:
        yield made
    finally:
        made.close()


def fetching(w: Any) -> Any:
    """A pull whose ranks all fetch."""
    w.source.each(lambda engine: engine.compute(PROMPT))
    pull = w.ask(PROMPT)
    w.rounds()
    return pull


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("page_tokens", [1, 4])
def test_should_use_what_has_landed_on_all_ranks(count: int, page_tokens: int) -> None:
    with teams(count, page_tokens) as w:
        pull = fetching(w)
        held = 40 // page_tokens * page_tokens
        for rank, transfer in w.fetching():
            assert pull.keeps_waiting()
            assert w.asker.cached(PROMPT) == 0, "a rank has nothing yet"
            w.land(rank, transfer)
            w.rounds()
        assert not pull.keeps_waiting()
        assert w.asker.cached(PROMPT) == held
        assert [engine.messenger.outcomes for engine in w.asker.engines] == [["arrived"]] + [[]] * (count - 1)
        w.assert_at_rest()


@pytest.mark.parametrize("failing", [0, 1])
def test_should_use_nothing_if_one_rank_has_failed(failing: int) -> None:
    with teams() as w:
        fetching(w)
        w.land(failing, w.fetching()[0][1], arrives=False)
        w.rounds()
        other = w.asker.engines[1 - failing].messenger
        assert len(other.abandoned) == 1, "the other rank's part is of no use"
        w.end()
        assert w.asker.cached(PROMPT) == 0
        assert w.asker.first.messenger.outcomes == ["failed"]
        w.assert_at_rest()


def test_should_wait_for_no_rank_whose_source_hangs() -> None:
    """Its pages stay away from others until the messenger knows that nothing writes to them."""
    with teams() as w:
        pull = fetching(w)
        w.asker.engines[1].messenger.fetches[0][3].quarantine = "its source hangs"
        w.rounds()
        assert not pull.keeps_waiting()
        assert w.asker.first.pulls.landing_count() == 1
        w.end()
        w.assert_at_rest()


def asked_until(w: Any, when: str) -> Any:
    """A pull of what the source has computed, until this has come of it."""
    w.source.each(lambda engine: engine.compute(PROMPT))
    if when == "before its fetch":
        w.asker.engines[1].passes.over = False
    pull = w.ask(PROMPT)
    if when == "answered":
        w.deliver_asks()
        w.source.round()
        w.source.round()
        w.deliver_offers()
    elif when != "asked":
        w.rounds()
    if when == "landed on one":
        w.land(*w.fetching()[0])
    return pull


@pytest.mark.parametrize("when", ["asked", "answered", "before its fetch", "fetching", "landed on one"])
def test_should_give_all_back_when_the_request_leaves(when: str) -> None:
    with teams() as w:
        pull = asked_until(w, when)
        pull.leave()
        w.rounds()
        w.end()
        assert w.asker.first.messenger.outcomes[0] in ("aborted", "arrived")
        w.asker.cached(PROMPT)
        w.assert_at_rest()


def test_should_use_nothing_that_arrives_while_the_caches_are_emptied() -> None:
    with teams() as w:
        fetching(w)
        w.asker.each(lambda engine: engine.pulls.abandon_all())
        w.end()
        assert w.asker.cached(PROMPT) == 0
        assert w.asker.first.messenger.outcomes == ["aborted"]
        w.assert_at_rest()


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("when", ["asked", "answered", "before its fetch", "fetching", "landed on one"])
def test_should_use_nothing_that_earlier_weights_computed(when: str, count: int) -> None:
    """The source still has them: what it offers was asked for by their name."""
    with teams(count) as w:
        pull = asked_until(w, when)
        for engine in w.asker.engines:
            engine.weights[0] = "changed"
        w.end()
        assert not pull.keeps_waiting()
        assert w.asker.cached(PROMPT) == 0
        assert w.asker.first.messenger.outcomes == ["misfit"]
        w.assert_at_rest()


@pytest.mark.parametrize("lost", [0, 1])
def test_should_give_all_back_when_one_ranks_messenger_is_lost(lost: int) -> None:
    with teams() as w:
        fetching(w)
        w.asker.engines[lost].pulls.on_lost()
        w.source.engines[lost].offers.on_lost()
        w.end()
        assert w.asker.cached(PROMPT) == 0
        w.assert_at_rest()


def test_should_not_be_asked_by_way_of_another_rank() -> None:
    from kv_connector.runtime.facade import Asked

    with teams() as w:
        w.source.engines[1].offers.asked(Asked("t", "digest", "", 4, [1, 2, 3, 4]))
        offer = w.source.engines[1].messenger.offers.pop()
        assert (offer.held_tokens, offer.reason) == (0, "misfit")
        w.rounds()
        w.assert_at_rest()


def test_should_hold_what_is_offered_until_the_last_messenger_has_released_it() -> None:
    with teams() as w:
        fetching(w)
        transfer = w.fetching()[0][1]
        w.release(1, transfer)
        w.rounds()
        assert [engine.offers.held_count() for engine in w.source.engines] == [1, 1]
        w.release(0, transfer)
        w.rounds(1)
        assert [engine.offers.held_count() for engine in w.source.engines] == [0, 0]
        w.end()


class Story:
    """Random events in random order at random ranks."""

    def __init__(self, seed: int, w: Any) -> None:
        self.draw = random.Random(seed)
        self.w = w
        self.pulls: list[Any] = []
        self.asked: list[list[int]] = []

    def prompt(self) -> list[int]:
        length, edited = self.draw.randint(2, 60), self.draw.randint(1, 60)
        first = self.draw.randint(1, 2)
        return [first + (place if place < edited else place * 7) for place in range(length)]

    def compute(self, team: Any) -> None:
        tokens = self.prompt()
        if team.first.prefix.whole_pages(len(tokens)) <= team.first.prefix.spare_count():
            team.each(lambda engine: engine.compute(tokens))

    def ask(self) -> None:
        self.asked.append(self.prompt())
        if (pull := self.w.ask(self.asked[-1])) is not None:
            self.pulls.append(pull)

    def land(self) -> None:
        if under_way := self.w.fetching():
            self.w.land(*self.draw.choice(under_way), arrives=self.draw.random() < 0.8)

    def passes(self, team: Any) -> None:
        engine = self.draw.choice(team.engines)
        engine.end_passes() if self.draw.random() < 0.6 else setattr(engine.passes, "over", False)

    def step(self) -> None:
        w, draw = self.w, self.draw
        later = draw.choice(w.asker.engines)
        steps: list[Callable[[], Any]] = [
            lambda: self.compute(w.asker),
            lambda: self.compute(w.source),
            self.ask,
            self.ask,
            lambda: w.deliver_asks(),
            lambda: w.source.round(),
            lambda: w.deliver_offers(),
            lambda: w.asker.round(),
            lambda: w.rounds(1),
            lambda: w.rounds(2),
            lambda: w.rounds(2),
            self.land,
            self.land,
            self.land,
            lambda: draw.choice(self.pulls).leave() if self.pulls else None,
            lambda: later.now.__setitem__(0, later.now[0] + draw.choice([0.1, 6.0])),
            lambda: self.passes(w.asker),
            lambda: self.passes(w.source),
            lambda: w.source.each(lambda engine: engine.offers.withdraw()) if draw.random() < 0.2 else None,
            lambda: w.asker.each(lambda engine: engine.pulls.abandon_all()) if draw.random() < 0.2 else None,
            lambda: setattr(draw.choice(w.asker.engines).proof, "due", draw.random() < 0.3),
        ]
        draw.choice(steps)()


def arrivals_in(seed: int) -> int:
    """One story; returns how many pulls arrived."""
    draw = random.Random(seed)
    with teams(draw.choice([2, 3]), draw.choice([1, 4])) as w:
        story = Story(seed, w)
        for _ in range(story.draw.randint(10, STEPS_MAX)):
            story.step()
        w.end()
        for tokens in [*story.asked, *(story.prompt() for _ in range(5))]:
            w.asker.cached(tokens)
            w.source.cached(tokens)
        w.assert_at_rest()
        return int(w.asker.first.messenger.outcomes.count("arrived"))


@pytest.mark.parametrize("first_seed", range(0, STORIES, STORIES // 6))
def test_should_keep_all_ranks_alike_through_any_story(first_seed: int) -> None:
    arrived = 0
    for seed in range(first_seed, first_seed + STORIES // 6):
        try:
            arrived += arrivals_in(seed)
        except BaseException as fault:
            fault.add_note(f"seed {seed}")
            raise
    assert arrived > 0, "stories in which nothing is pulled show nothing"


def looked_up_by_the_first_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_connector.sglang.prefix_tree import PrefixTree

    def held_count(tree: PrefixTree, tokens: Any, salt: str) -> int:
        return tree.whole_pages(int(tree._match(tokens, salt).device_prefix_len))

    monkeypatch.setattr(PrefixTree, "held_count", held_count)


def released_by_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_connector.sglang.pull_offers import Offers

    monkeypatch.setattr(Offers, "released", lambda offers, number: offers._let_go(number))


def landed_on_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from pull_ranks_world import Ranks

    monkeypatch.setattr(Ranks, "all_have", lambda _, votes: list(votes))


def given_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_connector.sglang.landings import Landing, Landings

    give_up = Landings._give_up

    def gives_up(landings: Landings, landing: Landing) -> None:
        give_up(landings, landing)
        if landing.incoming is None:
            landings._give_back(landing)

    monkeypatch.setattr(Landings, "_give_up", gives_up)


@pytest.mark.parametrize(
    "mutant", [looked_up_by_the_first_rank, released_by_each_rank, landed_on_each_rank, given_back_at_once]
)
def test_should_notice_ranks_that_act_on_their_own(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        sum(map(arrivals_in, range(4 * STORIES)))
