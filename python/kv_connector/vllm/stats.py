"""The messenger's main figures on vLLM's own log line and metrics page; all of them are on the messenger's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.vllm.vllm_api import KVConnectorPromMetrics, KVConnectorStats, create_metric_per_engine

PREFIX = "kv_messenger_"
"""How all of the messenger's names begin."""

COUNTERS: Mapping[str, str] = {
    "fetches_started": "Fetches that the decoder's engine asked for.",
    "fetches_arrived": "Fetches whose pages all arrived.",
    "fetches_failed": "Fetches that ended without their KV.",
    "fetches_abandoned": "Fetches that the engine gave up before they had ended.",
    "prefills_started": "Prefills whose KV is to be sent.",
    "prefills_sent": "Prefills whose KV has left completely.",
    "prefills_expired": "Prefills whose pages were given up because no grant came within the limit.",
    "prefills_undelivered": "Prefills that ended before their KV had left, for any other reason.",
    "layers_sent": "Layer writes that left, one for each layer of each chunk.",
    "layers_sent_early": "Layer writes that left before the forward pass of their chunk ended.",
    "pages_sent": "Pages (of one layer each) that the prefiller has written.",
    "sent_bytes": "Bytes of KV that the prefiller has written.",
    "pages_received": "Pages (of one layer each) of fetches that arrived.",
    "received_bytes": "Bytes of KV of fetches that arrived.",
    "writes_refused": "Writes refused because they left their window or region.",
    "peers_silent": "Peers declared lost because they were silent beyond the limit.",
}
GAUGES: Mapping[str, str] = {
    "fetches_open": "Fetches not yet ended.",
    "prefills_open": "Prefills whose pages are still needed by the messenger.",
    "pages_quarantined": "Pages that wait for proof that nothing can write to them.",
    "sessions_open": "Peers with a completed handshake.",
}


@dataclass
class MessengerStats(KVConnectorStats):
    """Counters gained since the last report, by name, and gauges as they are; sums over ranks and over time."""

    def __post_init__(self) -> None:
        """Vllm makes it empty, or around data that came from another process."""
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.data = {"counters": {}, "gauges": {}}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another report: counters add up, of a gauge the later value stays."""
        counters = self.data["counters"]
        for name, gain in other.data.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + gain
        self.data["gauges"].update(other.data.get("gauges", {}))
        return self

    def reduce(self) -> dict[str, int | float]:
        """What vLLM logs of an interval."""
        counters = {_short(name): gain for name, gain in self.data["counters"].items()}
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
        return not self.data.get("counters") and not self.data.get("gauges")


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
        self._counters = {
            name: self._per_engine(self._counter_cls, name, sentence, labelnames) for name, sentence in COUNTERS.items()
        }
        self._gauges = {
            name: self._per_engine(self._gauge_cls, name, sentence, labelnames) for name, sentence in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Takes one report of an engine; names that are only on the messenger's own page are passed over."""
        for name, gain in transfer_stats_data.get("counters", {}).items():
            if (counter := self._counters.get(_short(name))) is not None:
                counter[engine_idx].inc(gain)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            if (gauge := self._gauges.get(_short(name))) is not None:
                gauge[engine_idx].set(value)

    def _per_engine(self, kind: Any, name: str, sentence: str, labelnames: list[str]) -> dict[int, Any]:
        metric = kind(name=f"vllm:{PREFIX}{name}", documentation=sentence, labelnames=labelnames)
        return create_metric_per_engine(metric, self.per_engine_labelvalues)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix("_total")
