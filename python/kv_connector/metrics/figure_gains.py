"""What a messenger's counters have gained since the last report, and how a metrics page adds that up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kv_connector.runtime.facade import Stats

Gains = dict[str, dict[str, Any]]
"""Gains by section of ``Stats`` and name; plain values, because they travel between processes."""


class GainMeter:
    """Computes what was gained since its last call. Used by one thread only."""

    def __init__(self) -> None:
        self._reported = Stats({}, {})

    def gains(self, stats: Stats) -> Gains:
        """The gains since the last call, without those that are zero."""
        reported, self._reported = self._reported, stats
        counters = {name: total - reported.counters.get(name, 0) for name, total in stats.counters.items()}
        reasons = {name: _gained(totals, reported.reasons.get(name, {})) for name, totals in stats.reasons.items()}
        histograms = {}
        for name, observed in stats.histograms.items():
            before = reported.histograms.get(name)
            counts = [
                count - (before["buckets"][index] if before else 0) for index, count in enumerate(observed["buckets"])
            ]
            if any(counts):
                histograms[name] = {"buckets": counts, "sum": observed["sum"] - (before["sum"] if before else 0)}
        return {
            "counters": {name: gain for name, gain in counters.items() if gain},
            "reasons": {name: gained for name, gained in reasons.items() if gained},
            "histograms": histograms,
        }


def _gained(totals: Mapping[str, float], reported: Mapping[str, float]) -> dict[str, float]:
    gains = {label: total - reported.get(label, 0) for label, total in totals.items()}
    return {label: gain for label, gain in gains.items() if gain}


def add_gains(to: Gains, more: Mapping[str, Any]) -> None:
    """Adds ``more`` to ``to``: gains of several messengers, or of one at several times."""
    for name, gain in more.get("counters", {}).items():
        counters = to.setdefault("counters", {})
        counters[name] = counters.get(name, 0) + gain
    for name, gained in more.get("reasons", {}).items():
        reasons = to.setdefault("reasons", {}).setdefault(name, {})
        for label, gain in gained.items():
            reasons[label] = reasons.get(label, 0) + gain
    for name, observed in more.get("histograms", {}).items():
        histograms = to.setdefault("histograms", {})
        before = histograms.get(name, {"buckets": [0] * len(observed["buckets"]), "sum": 0.0})
        histograms[name] = {
            "buckets": [a + b for a, b in zip(before["buckets"], observed["buckets"], strict=True)],
            "sum": before["sum"] + observed["sum"],
        }


def observations(bounds: Sequence[float], counts: Sequence[int], total: float) -> Iterator[float]:
    """Values that reproduce a histogram: the given number in each bucket, with ``total`` as their sum.

    Metrics libraries accept values, not buckets. Values in the bucket without an upper bound get the rest of the sum;
    if there are none, all values lie at the same fraction between the bounds of their buckets.
    """
    lowest = [0.0, *bounds]
    beyond = counts[len(bounds)] if len(counts) > len(bounds) else 0
    within = range(len(bounds))
    room = sum(counts[index] * (bounds[index] - lowest[index]) for index in within)
    above = total - sum(counts[index] * lowest[index] for index in within) - beyond * lowest[-1]
    share = above / room if room else 1.0
    if beyond:
        share = min(share, 0.5)
    left = total
    for index in within:
        value = lowest[index] + min(1.0, max(share, 0.0)) * (bounds[index] - lowest[index])
        value = min(bounds[index], max(value, math.nextafter(lowest[index], math.inf)))
        left -= counts[index] * value
        for _ in range(counts[index]):
            yield value
    for _ in range(beyond):
        yield max(left / beyond, math.nextafter(lowest[-1], math.inf))
