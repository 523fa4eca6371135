"""The commands by which the messenger counts what comparisons of received with own KV came to. Pure."""

from __future__ import annotations

from typing import Any, Literal

from kv_connector._facade import Command

Outcome = Literal["equal", "different", "unjudged"]

DIFFERENCE_MAX = 1e6
"""What an infinite difference is counted as; no difference between right engines is near it."""


def compared_command(outcome: Outcome, worst: float, prefiller: dict[str, Any]) -> Command:
    """The KV of a prompt was compared. ``worst``: the largest difference, as a part of a layer's largest number."""
    return {
        "do": "compared",
        "outcome": outcome,
        "differenceMillionths": round(min(worst, DIFFERENCE_MAX) * 1e6),
        "prefillers": [prefiller],
    }


def refuted_command(fetches: int) -> Command:
    """This many fetches were not begun, because their prefiller computes another KV."""
    return {"do": "refuted", "fetches": fetches}
