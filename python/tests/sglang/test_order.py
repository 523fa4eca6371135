"""Positions keep their pages in every order in which SGLang plans, sends and sends early; see sglang_order.py."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from one_process import Pair
    from sglang_order import Prefill

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

CASES = {
    "cold, three passes": (0, (16, 16, 13)),
    "a hit, one pass left": (44, (1,)),
    "a hit, two passes left": (16, (16, 13)),
    "a hit, three passes left": (16, (8, 16, 5)),
}


@pytest.fixture(scope="module", params=[16, 1], ids=["pages of 16", "pages of 1"])
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Pair, Shape

        opened = Pair(tmp_path_factory.mktemp("model"), Shape(page_tokens=request.param))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prefill(pair: Pair) -> Prefill:
    from sglang_order import Prefill

    return Prefill(pair)


@pytest.mark.parametrize("early", [True, False], ids=["sent early", "sent with its pass"])
@pytest.mark.parametrize("overlap", [False, True], ids=["one batch at a time", "overlap"])
@pytest.mark.parametrize("name", CASES)
def test_should_fill_every_page_with_its_own(
    pair: Pair, prefill: Prefill, name: str, overlap: bool, early: bool
) -> None:
    from one_process import PAGE_COUNT
    from sglang_order import Case

    pair.prefiller.scribble(1)
    pair.decoder.scribble(2)
    draw = random.Random(name)
    case = Case(*CASES[name], overlap=overlap, early=early)
    sources, targets = (draw.sample(range(1, PAGE_COUNT + 1), case.page_count) for _ in range(2))
    prefill.run(case, sources, targets)
    pair.assert_nothing_held()
