"""The picture of a transfer shows what its two timelines say."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from picture import LEFT, RIGHT, WIDTH, longest, main, picture
from test_timeline import FETCH, PREFILL
from timeline import fetches, prefills

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
    said = " ".join(text.text or "" for text in drawn().iter(f"{SVG}text"))
    assert "512 tokens" in said
    assert "3 of 4 layers left before" in said


def test_logs_of_a_demo_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "prefiller.log").write_text(PREFILL)
    (tmp_path / "decoder.log").write_text(FETCH)
    output = tmp_path / "pictures" / "transfer.svg"
    assert main([str(tmp_path), str(output)]) == 0
    assert output.read_text().startswith("<svg ")


def test_logs_without_layers_are_refused(tmp_path: Path) -> None:
    for name in ("prefiller.log", "decoder.log"):
        (tmp_path / name).write_text("nothing of interest\n")
    with pytest.raises(SystemExit, match=re.escape(f"the logs in {tmp_path} tell of no transfer")):
        longest(tmp_path)
