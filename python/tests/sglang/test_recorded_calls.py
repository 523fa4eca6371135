"""Each request that was recorded with SGLang's own scheduler, in every order that its calls can come in; see recorded/.

    make wheel && examples/setup/environment run sglang --wheel "$(cat python/dist/.wheel)" -- \\
        -m pytest e2e-tests/sglang_pair/test_recorded_calls.py --record
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from recorded_calls import AGAIN, Call, Computed, Other, Plan, Sent, recordings

if TYPE_CHECKING:
    from one_process import Pair
    from sglang_order import Prefill

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PAGE_TOKENS = {"pages-of-16": 16, "pages-of-1-overlap": 1}
ALL = {name: recordings(name) for name in PAGE_TOKENS}
SERVED = [(name, title) for name, found in ALL.items() for title, one in found.items() if one.served()]
GIVEN_UP = [(name, title) for name, found in ALL.items() for title, one in found.items() if not one.served()]
POOL_PAGES = {"pages-of-16": 64, "pages-of-1-overlap": 768}


@pytest.fixture(scope="module")
def pairs(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pair]]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Pair, Shape

        shapes = {name: Shape(page_tokens=PAGE_TOKENS[name], page_count=POOL_PAGES[name]) for name in ALL}
        opened = {name: Pair(tmp_path_factory.mktemp(name), shape) for name, shape in shapes.items()}
    yield opened
    for pair in opened.values():
        pair.assert_nothing_held()
        pair.close()


@pytest.fixture(scope="module")
def prefills(pairs: dict[str, Pair]) -> dict[str, Prefill]:
    from sglang_order import Prefill

    return {name: Prefill(pair) for name, pair in pairs.items()}


@pytest.mark.parametrize(("name", "title"), SERVED)
def test_should_fill_every_page_with_its_own(
    pairs: dict[str, Pair], prefills: dict[str, Prefill], name: str, title: str
) -> None:
    from sglang_replay import Replay

    recorded, pair, draw = ALL[name][title], pairs[name], random.Random(title)
    orders = list(recorded.orders(PAGE_TOKENS[name]))
    assert recorded.order() in orders
    for order in orders:
        replay = Replay(pair, prefills[name], recorded, draw)
        replay.make(order)
        replay.end_served()
        if order == recorded.order():
            assert replay.plans == [call.leaves for call in order if isinstance(call, Plan)]
    print(f"{name}, {title}: {len(orders)} orders")


@pytest.mark.parametrize(("name", "title"), GIVEN_UP)
def test_should_touch_no_page_of_a_request_that_was_given_up(
    pairs: dict[str, Pair], prefills: dict[str, Prefill], name: str, title: str
) -> None:
    """With each number of passes and of sends behind it. Then the prefiller's pages get another owner."""
    from sglang_replay import Replay, given_up_at, unchanged

    recorded, pair, draw = ALL[name][title], pairs[name], random.Random(title)
    orders = list(recorded.orders(PAGE_TOKENS[name]))
    begun = [order[:step] for order in orders for step in range(len(order) + 1)]
    steps = {progress(calls): calls for calls in begun if progress(calls)[0] == progress(calls)[1]}
    for step in steps.values():
        replay = Replay(pair, prefills[name], recorded, draw)
        replay.make(step)
        replay.give_up(**given_up_at(recorded))
        before = replay.targets_now()
        replay.overwrite_sources()
        pair.assert_nothing_held()
        assert unchanged(before, replay.targets_now())
    print(f"{name}, {title}: {len(steps)} steps")


def progress(calls: list[Call]) -> tuple[int, ...]:
    """Passes planned, computed and sent. SGLang ends no request between a pass's plan and its end."""
    return tuple(sum(isinstance(call, kind) for call in calls) for kind in (Plan, Computed, Sent))


def test_should_have_recorded_what_the_scheduler_can_do() -> None:
    for name, found in ALL.items():
        calls = [call for one in found.values() for call in one.prefill]
        events = [call.behind_event for call in calls if isinstance(call, Sent)]
        assert any(events) == name.endswith("overlap"), "an early send beside a pass waits for an event"
        assert any(call.leaves for call in calls if isinstance(call, Plan))
        assert Other("abort") in calls
        assert any(title.endswith(AGAIN) for title in found), "one was retracted and asked for again"
