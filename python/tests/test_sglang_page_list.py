"""Every order in which SGLang can plan, give and give early leaves the messenger with position k in page k."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kv_connector.sglang.page_list import PageList, Pages, PagesMovedError

PAGES = [40, 7, 41, 3, 90, 12]
"""Of the prompt, in no order; the page of a position says which position it is."""


@dataclass
class Messenger:
    """Refuses what the boundary refuses: a gap, and another page for a position that is known."""

    pages: dict[int, int] = field(default_factory=dict)

    def take(self, taken: Pages) -> None:
        assert not self.pages or taken.first_page <= max(self.pages) + 1, "a gap"
        for position, page in enumerate(taken.pages, taken.first_page):
            assert self.pages.setdefault(position, page) == page, "another page for a known position"


def plan(pages: PageList, messenger: Messenger, end_page: int, *, taken: bool) -> None:
    planned = pages.plan(end_page, lambda first, end: PAGES[first:end])
    if planned is not None and taken:
        messenger.take(planned)
        pages.on_reported(planned)


def report(pages: PageList, messenger: Messenger, end_page: int) -> None:
    taken = pages.unreported(end_page)
    messenger.take(taken)
    pages.on_reported(taken)


Steps = tuple[tuple[str, int], ...]


def orders(decoders: int, total: int, passes: int) -> Iterator[Steps]:
    """All of SGLang's: each position is given once, in order; a plan may come before, between or after."""

    def more(given: int, reported: int, planned: int, left: int) -> Iterator[Steps]:
        if given == total and reported == total:
            yield ()
        for end in range(given + 1, total + 1):
            for rest in more(end, reported, planned, left):
                yield (("give", end), *rest)
        if reported < given:
            for rest in more(given, given, planned, left):
                yield (("tell", given), *rest)
        if left:
            for end in range(planned + 1, total + 1):
                for kind in ("plan", "refused"):
                    for rest in more(given, reported, end, left - 1):
                        yield ((kind, end), *rest)

    return more(decoders, decoders, decoders, passes)


@pytest.mark.parametrize("decoders", [0, 1, 2])
def test_should_give_each_position_its_page_in_every_order(decoders: int) -> None:
    total, count = decoders + 3, 0
    for steps in orders(decoders, total, passes=2):
        pages, messenger = PageList(decoders, total - decoders), Messenger()
        for kind, end in steps:
            match kind:
                case "give":
                    pages.give(PAGES[pages.given : end])
                case "tell":
                    report(pages, messenger, end)
                case _:
                    plan(pages, messenger, end, taken=kind == "plan")
        assert messenger.pages == {k: PAGES[k] for k in range(decoders, total)}, steps
        assert pages.complete
        count += 1
    assert count > 1000


def test_should_not_report_twice_what_a_plan_has_reported() -> None:
    pages, messenger = PageList(0, 6), Messenger()
    plan(pages, messenger, 4, taken=True)
    pages.give(PAGES[:2])
    assert pages.unreported(2).pages == []
    report(pages, messenger, 2)
    plan(pages, messenger, 4, taken=True)
    assert pages.reported_end == 4
    pages.give(PAGES[2:])
    assert pages.unreported(6) == Pages(4, PAGES[4:])


def test_should_plan_the_pages_that_wait_for_their_event_with_those_behind_them() -> None:
    pages = PageList(1, 5)
    pages.give(PAGES[1:3])
    assert pages.plan(5, lambda first, end: PAGES[first:end]) == Pages(1, PAGES[1:5])


def test_should_notice_a_page_that_moved_after_it_was_reported() -> None:
    pages = PageList(0, 6)
    planned = pages.plan(3, lambda first, end: PAGES[first:end])
    assert planned is not None
    pages.on_reported(planned)
    with pytest.raises(PagesMovedError, match="page 5 holds position 1, which was computed in page 7"):
        pages.give([40, 5, 41])


def test_should_take_other_pages_than_a_plan_that_was_not_reported() -> None:
    pages, messenger = PageList(0, 6), Messenger()
    plan(pages, messenger, 3, taken=False)
    pages.give([8, 9, 10])
    report(pages, messenger, 3)
    assert messenger.pages == {0: 8, 1: 9, 2: 10}


@pytest.mark.parametrize("pages", [[1, 2, 3], [1, 2, 3, 4]])
def test_should_refuse_more_pages_than_were_promised(pages: list[int]) -> None:
    listed = PageList(1, 2)
    with pytest.raises(AssertionError, match="of a prompt of 3"):
        listed.give(pages)


def test_should_keep_positions_of_long_prompts_in_drawn_orders() -> None:
    draw = random.Random(5)
    for _ in range(200):
        total = draw.randint(1, len(PAGES))
        decoders = draw.randint(0, total)
        pages, messenger = PageList(decoders, total - decoders), Messenger()
        while not (pages.complete and pages.reported_end == total):
            step = draw.randint(0, 2)
            if step == 0:
                plan(pages, messenger, draw.randint(0, total), taken=draw.random() < 0.7)
            elif step == 1:
                pages.give(PAGES[pages.given : draw.randint(pages.given, total)])
            else:
                report(pages, messenger, max(pages.given, pages.reported_end))
        assert messenger.pages == {k: PAGES[k] for k in range(decoders, total)}
