"""The messenger's figures on vLLM's own log line and metrics page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kv_connector.figure_gains import add_gains
from kv_connector.page_figures import PageFigures, short
from kv_connector.vllm.vllm_api import KVConnectorPromMetrics, KVConnectorStats

SECTIONS = ("counters", "reasons", "histograms", "gauges")


@dataclass
class MessengerStats(KVConnectorStats):
    """What counters and histograms gained since the last report, and gauges as they are, by messenger and name.

    vLLM adds reports up by one method over messengers and over time; so gauges keep saying whose they are.
    """

    def __post_init__(self) -> None:
        """Vllm makes it empty, or around data that came from another process."""
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.data = {section: {} for section in SECTIONS}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another report: what was gained adds up, of a messenger's gauges the later ones stay."""
        add_gains(self.data, other.data)
        self.data.setdefault("gauges", {}).update(other.data.get("gauges", {}))
        return self

    def reduce(self) -> dict[str, int | float]:
        """What vLLM logs of an interval."""
        counters = {short(name): gain for name, gain in self.data["counters"].items()}
        said: dict[str, int | float] = {}
        for name in ("prefills_sent", "fetches_arrived", "fetches_failed", "layers_sent", "layers_sent_early"):
            if name in counters:
                said[name] = counters[name]
        for name in ("sent_bytes", "received_bytes"):
            if name in counters:
                said[name.replace("_bytes", "_MB")] = round(counters[name] / 1e6, 3)
        return said

    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return not any(self.data.get(section) for section in SECTIONS)


class MessengerPromMetrics(KVConnectorPromMetrics):
    """The figures on vLLM's metrics page; in the API server's process, where no messenger runs."""

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
        """Takes one report of an engine; a gauge is the sum over its messengers. Unknown names are passed over."""
        self._engines[engine_idx].take(transfer_stats_data, transfer_stats_data.get("gauges", {}))
