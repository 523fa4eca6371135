"""Whole numbers are computed for a CUDA that computes nothing, numbers with a fraction are not, and captures record."""

from __future__ import annotations

from typing import Any

import pytest

from uncomputed.stories import Stories

STORY = """
import json

import torch
from uncomputed.whole_numbers import OnHost

found = {}
OnHost().__enter__()
pages = torch.arange(8, device="cuda")
found["range"] = pages.tolist()
table = torch.zeros((3, 4), dtype=torch.int32, device="cuda")
table[:, 1] = torch.tensor([5, 6, 7], device="cuda").to(torch.int32)
found["column"] = table.tolist()
found["sum"] = torch.cumsum(table[:, 1], 0).tolist()
found["sorted"] = torch.sort(torch.cat([pages[4:], pages[:2]]))[0].tolist()
found["unique"] = torch.unique(pages // 3).tolist()
found["masked"] = pages[pages > 5].tolist()
pages[2:4] += 10
found["in place"] = pages.tolist()
rows, places = torch.tensor([0, 2], device="cuda"), torch.tensor([3, 0], device="cuda")
table[rows, places] = torch.tensor([8, 9], dtype=torch.int32, device="cuda")
found["scattered"] = table.tolist()
found["fractions"] = (torch.zeros(3, device="cuda") + 1).tolist()
found["rounded"] = torch.full((2,), 1.5, device="cuda").to(torch.int64).device.type

stream, graph, event = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.cuda.Event(external=True)
kept = torch.zeros(2, dtype=torch.int64, device="cuda")
with torch.cuda.stream(stream):
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        kept += 1
        event.record()
    found["captured"] = kept.tolist()
    graph.replay()
    event.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            torch.cuda.Event().record()
        found["joined"] = "recorded"
    except Exception as refused:
        found["joined"] = str(refused)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(stories: Stories) -> dict[str, Any]:
    return stories.run(STORY)


def test_tables_of_pages_are_computed(found: dict[str, Any]) -> None:
    assert found["range"] == list(range(8))
    assert found["column"] == [[0, 5, 0, 0], [0, 6, 0, 0], [0, 7, 0, 0]]
    assert found["sum"] == [5, 11, 18]
    assert found["sorted"] == [0, 1, 4, 5, 6, 7]
    assert found["unique"] == [0, 1, 2]
    assert found["masked"] == [6, 7]
    assert found["in place"] == [0, 1, 12, 13, 4, 5, 6, 7]
    assert found["scattered"] == [[0, 5, 0, 8], [0, 6, 0, 0], [9, 7, 0, 0]]


def test_numbers_with_a_fraction_are_not(found: dict[str, Any]) -> None:
    assert found["fractions"] != [1.0] * 3
    assert found["rounded"] == "cuda"


def test_nothing_is_computed_in_a_capture(found: dict[str, Any]) -> None:
    assert found["captured"] == [0, 0]


def test_only_an_external_event_is_recorded_in_a_capture(found: dict[str, Any]) -> None:
    assert "STREAM_CAPTURE" in found["joined"]
