"""The picture of a transfer shows what its two timelines say."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from test_timelines import FETCH, PREFILL

from kv_connector.cli.timelines import fetches, prefills
from kv_connector.cli.transfer_picture import LEFT, RIGHT, WIDTH, picture

SVG = "{http://www.w3.org/2000/svg}"


def drawn() -> ElementTree.Element:
    return ElementTree.fromstring(picture(prefills(PREFILL)["t1"], fetches(FETCH)["t1"]))


def bars(kind: str) -> list[tuple[float, float]]:
    found = [rect for rect in drawn().iter(f"{SVG}rect") if rect.get("class") == kind]
    return [(float(rect.get("x", "")), float(rect.get("width", ""))) for rect in found]


def test_there_is_a_bar_for_each_pass_and_layer() -> None:
    """Of the four layers one left after its pass."""
    assert len(bars("pass")) == 2
    assert len(bars("layer")) == 3
    assert len(bars("late")) == 1


def test_the_fetch_spans_the_picture() -> None:
    """From the grant, which came first, to ready, which is the end."""
    ((left, width),) = bars("fetch")
    assert left == pytest.approx(LEFT, abs=0.1)
    assert left + width == pytest.approx(WIDTH - RIGHT, abs=0.2)


def test_a_bar_stands_at_its_time() -> None:
    scale = (WIDTH - LEFT - RIGHT) / (320 - 90)
    assert list(bars("pass")[0]) == pytest.approx([LEFT + 10 * scale, 100 * scale], abs=0.2)


def test_words_say_what_was_counted() -> None:
    texts = " ".join(text.text or "" for text in drawn().iter(f"{SVG}text"))
    assert "512 tokens" in texts
    assert "3 of 4 layers left before" in texts
