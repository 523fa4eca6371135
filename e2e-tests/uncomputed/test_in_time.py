"""Layers that are handed over together, or behind their pass, are found in a prefiller's timelines."""

from __future__ import annotations

import json

import pytest

from uncomputed.in_time import judged_in_time


def log(*layers: tuple[int, int]) -> str:
    """Of a pass from 10 to 50, with each layer's time complete and handed over."""
    times = [
        {"layer": at, "readableNs": readable, "submittedNs": submitted, "leftNs": 90}
        for at, (readable, submitted) in enumerate(layers)
    ]
    chunk = {"firstToken": 0, "endToken": 16, "forwardStartNs": 10, "forwardEndNs": 50, "layers": times}
    line = {"side": "prefiller", "transfer": "a", "transport": "tcp", "chunks": [chunk]}
    return f"INFO kv_messenger timeline {json.dumps(line)}\n"


def test_layers_that_are_handed_over_one_by_one_pass_whenever_they_leave() -> None:
    judged_in_time(log((20, 21), (30, 31), (40, 41)))


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param([(49, 49), (49, 49), (49, 50)], id="all complete at once, as where no layer is counted"),
        pytest.param([(20, 60), (30, 60), (40, 60)], id="handed over behind the pass"),
        pytest.param([(40, 41), (40, 20), (40, 0)], id="an earlier chunk's, and one that is not handed over"),
    ],
)
def test_layers_that_wait_for_the_last_one_are_found(layers: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError, match=r"none of 3 layers was handed over"):
        judged_in_time(log(*layers))


def test_log_without_timelines_is_found() -> None:
    with pytest.raises(AssertionError, match=r"none of 0 layers"):
        judged_in_time("")
