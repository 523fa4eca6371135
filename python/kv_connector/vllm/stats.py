"""The messenger's statistics in vLLM's own log line and on its metrics page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kv_connector.metrics.figure_gains import add_gains
from kv_connector.metrics.page_figures import PageFigures, short
from kv_connector.vllm.vllm_api import KVConnectorPromMetrics, KVConnectorStats

SECTIONS = ("counters", "reasons", "histograms", "gauges")


@dataclass
class MessengerStats(KVConnectorStats):
    """What counters and histograms gained since the last report, and the current gauges by messenger and name.

    vLLM aggregates reports over messengers and over time with the same method, so gauges stay keyed by messenger.
    """

    def __post_init__(self) -> None:
        """Fills in the sections that a report leaves out, as that of an engine that sleeps."""
        self.data = {section: self.data.get(section, {}) for section in SECTIONS}

    def reset(self) -> None:
        """Removes all values."""
        self.data = {section: {} for section in SECTIONS}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another report: gains are summed, and a messenger's later gauges replace its earlier ones."""
        add_gains(self.data, other.data)
        self.data.setdefault("gauges", {}).update(other.data.get("gauges", {}))
        return self

    def reduce(self) -> dict[str, int | float]:
        """The values that vLLM logs for an interval."""
        counters = {short(name): gain for name, gain in self.data["counters"].items()}
        figures: dict[str, int | float] = {}
        for name in ("prefills_sent", "fetches_arrived", "fetches_failed", "layers_sent", "layers_sent_early"):
            if name in counters:
                figures[name] = counters[name]
        for name in ("sent_bytes", "received_bytes"):
            if name in counters:
                figures[name.replace("_bytes", "_MB")] = round(counters[name] / 1e6, 3)
        return figures

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not any(self.data.get(section) for section in SECTIONS)


class MessengerPromMetrics(KVConnectorPromMetrics):
    """The metrics on vLLM's metrics page. Lives in the API server's process, in which no messenger runs."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        page = PageFigures(
            "vllm:",
            labelnames,
            counter=self._counter_cls,
            gauge=self._gauge_cls,
            histogram=self._histogram_cls,
        )
        self._engines = {index: page.of(*values) for index, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Takes one report of an engine; a gauge is the sum over its messengers. Unknown names are ignored."""
        self._engines[engine_idx].take(transfer_stats_data, transfer_stats_data.get("gauges", {}))
