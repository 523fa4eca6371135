"""The messenger's figures for the engine's own metrics page, at most once in an interval."""

from __future__ import annotations

import time
from typing import Any

from kv_connector.metrics.figure_gains import GainMeter
from kv_connector.runtime.facade import MessengerPort

STATS_INTERVAL_SECONDS = 1.0


class EngineFigures:
    """What a messenger's figures have gained since they were last taken. Used by the worker's main thread only."""

    def __init__(self, messenger: MessengerPort) -> None:
        self._messenger = messenger
        self._gains = GainMeter()
        self._reported_gauges: dict[str, float] = {}
        self._due_seconds = time.monotonic()

    def request_ended(self) -> None:
        """What has ended is counted with this step."""
        self._due_seconds = time.monotonic()

    def take(self) -> dict[str, dict[str, Any]] | None:
        """What counters have gained since the last call, and the gauges; None if unchanged or within the interval."""
        now_seconds = time.monotonic()
        if now_seconds < self._due_seconds:
            return None
        self._due_seconds = now_seconds + STATS_INTERVAL_SECONDS
        stats = self._messenger.stats()
        gains = self._gains.gains(stats)
        if not any(gains.values()) and stats.gauges == self._reported_gauges:
            return None
        self._reported_gauges = dict(stats.gauges)
        return gains | {"gauges": {self._messenger.opened.incarnation: dict(stats.gauges)}}

    def take_off(self) -> dict[str, dict[str, Any]] | None:
        """Takes the gauges of a messenger that was given up off the page, once."""
        shown, self._reported_gauges = self._reported_gauges, {}
        return {"gauges": {self._messenger.opened.incarnation: {}}} if shown else None
