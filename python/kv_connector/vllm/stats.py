"""The messenger's figures on vLLM's own log line and metrics page."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from kv_connector._metrics import COUNTERS, GAUGES
from kv_connector.vllm.vllm_api import KVConnectorPromMetrics, KVConnectorStats, create_metric_per_engine

PREFIX = "kv_messenger_"
"""How all of the messenger's names begin."""


@dataclass
class MessengerStats(KVConnectorStats):
    """Counters gained since the last report, by name, and gauges as they are, by messenger and name.

    vLLM adds reports up by one method over messengers and over time; so gauges keep saying whose they are.
    """

    def __post_init__(self) -> None:
        """Vllm makes it empty, or around data that came from another process."""
        if not self.data:
            self.reset()

    def reset(self) -> None:
        """Forgets everything."""
        self.data = {"counters": {}, "gauges": {}}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds another report: counters add up, of a messenger's gauges the later ones stay."""
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
        self._told: defaultdict[int, dict[str, dict[str, float]]] = defaultdict(dict)
        """By engine and messenger, the gauges as they were told last."""
        self._counters = {
            name: self._per_engine(self._counter_cls, name, sentence, labelnames) for name, sentence in COUNTERS.items()
        }
        self._gauges = {
            name: self._per_engine(self._gauge_cls, name, sentence, labelnames) for name, sentence in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Takes one report of an engine; a gauge is the sum over its messengers. Unknown names are passed over."""
        for name, gain in transfer_stats_data.get("counters", {}).items():
            if (counter := self._counters.get(_short(name))) is not None:
                counter[engine_idx].inc(gain)
        told = self._told[engine_idx]
        told.update(transfer_stats_data.get("gauges", {}))
        for name, gauge in self._gauges.items():
            said = [gauges[PREFIX + name] for gauges in told.values() if PREFIX + name in gauges]
            if said:
                gauge[engine_idx].set(sum(said))

    def _per_engine(self, kind: Any, name: str, sentence: str, labelnames: list[str]) -> dict[int, Any]:
        metric = kind(name=f"vllm:{PREFIX}{name}", documentation=sentence, labelnames=labelnames)
        return create_metric_per_engine(metric, self.per_engine_labelvalues)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX).removesuffix("_total")
