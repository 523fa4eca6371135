"""The messenger's metrics on an engine's own metrics page; independent of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kv_connector.metrics.figure_gains import observations
from kv_connector.metrics.table import BUCKET_BOUNDS_SECONDS, COUNTERS, GAUGES, HISTOGRAMS, REASONS

PREFIX = "kv_messenger_"
"""The prefix of all of the messenger's metric names."""
REASON = "reason"
"""The label of counters that are divided by reason."""


def short(name: str) -> str:
    """A metric's name in the tables of ``table``."""
    return name.removeprefix(PREFIX).removesuffix("_total")


class PageFigures:
    """All metrics of a page. Created once per page and used by one thread.

    ``counter``, ``gauge`` and ``histogram`` create a metric of the page's library from ``name``, ``documentation``,
    ``labelnames`` and, for a histogram, ``buckets``.
    """

    def __init__(
        self,
        prefix: str,
        labelnames: list[str],
        *,
        counter: Callable[..., Any],
        gauge: Callable[..., Any],
        histogram: Callable[..., Any],
    ) -> None:
        self._prefix = f"{prefix}{PREFIX}"
        self._counters = {
            name: counter(
                name=self._prefix + name,
                documentation=sentence,
                labelnames=[*labelnames, REASON] if name in REASONS else labelnames,
            )
            for name, sentence in COUNTERS.items()
        }
        self._gauges = {
            name: gauge(name=self._prefix + name, documentation=sentence, labelnames=labelnames)
            for name, sentence in GAUGES.items()
        }
        self._histograms = {
            name: histogram(
                name=self._prefix + name,
                documentation=sentence,
                labelnames=labelnames,
                buckets=BUCKET_BOUNDS_SECONDS,
            )
            for name, sentence in HISTOGRAMS.items()
        }

    def of(self, *labelvalues: object) -> EngineFigures:
        """Creates the series of one engine, with initial values of zero."""
        return EngineFigures(
            {(name, ""): metric.labels(*labelvalues) for name, metric in self._counters.items() if name not in REASONS}
            | {
                (name, reason): self._counters[name].labels(*labelvalues, reason)
                for name, reasons in REASONS.items()
                for reason in reasons
            },
            {name: metric.labels(*labelvalues) for name, metric in self._gauges.items()},
            {name: metric.labels(*labelvalues) for name, metric in self._histograms.items()},
        )


class EngineFigures:
    """The series of one engine's messengers. Unknown metrics are ignored."""

    def __init__(
        self, counters: Mapping[tuple[str, str], Any], gauges: Mapping[str, Any], histograms: Mapping[str, Any]
    ) -> None:
        self._counters = counters
        """Counters by name and reason."""
        self._gauges = gauges
        self._histograms = histograms
        self._reported: dict[str, dict[str, float]] = {}
        """The last reported gauges of each messenger."""

    def take(self, gains: Mapping[str, Any], gauges: Mapping[str, Mapping[str, float]]) -> None:
        """Adds gains and sets gauges, which are given by messenger; the page shows their sum.

        A messenger without any is closed, and shown no more.
        """
        for name, gain in gains.get("counters", {}).items():
            self._count(short(name), "", gain)
        for name, gained in gains.get("reasons", {}).items():
            for reason, gain in gained.items():
                self._count(short(name), reason, gain)
        for name, observed in gains.get("histograms", {}).items():
            if (histogram := self._histograms.get(short(name))) is not None:
                for value in observations(BUCKET_BOUNDS_SECONDS, observed["buckets"], observed["sum"]):
                    histogram.observe(value)
        self._reported.update({messenger: dict(reported) for messenger, reported in gauges.items()})
        self._reported = {messenger: reported for messenger, reported in self._reported.items() if reported}
        for name, gauge in self._gauges.items():
            gauge.set(sum(reported.get(PREFIX + name, 0.0) for reported in self._reported.values()))

    def _count(self, name: str, reason: str, gain: float) -> None:
        if (counter := self._counters.get((name, reason))) is not None:
            counter.inc(gain)
