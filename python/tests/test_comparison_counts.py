"""The commands by which comparisons of received with own KV are counted."""

from __future__ import annotations

import math

from kv_connector.comparison_counts import DIFFERENCE_MAX, compared_command, refuted_command

THERE = {"host": "there", "port": 7, "engineId": ""}


def test_a_comparison_names_its_prefiller_and_its_difference() -> None:
    assert compared_command("equal", 0.25, THERE) == {
        "do": "compared",
        "outcome": "equal",
        "differenceMillionths": 250_000,
        "prefillers": [THERE],
    }


def test_an_infinite_difference_is_a_number() -> None:
    assert compared_command("different", math.inf, THERE)["differenceMillionths"] == DIFFERENCE_MAX * 1e6


def test_a_refused_fetch_is_counted_alone() -> None:
    assert refuted_command(2) == {"do": "refuted", "fetches": 2}
