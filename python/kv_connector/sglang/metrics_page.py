"""The messenger's metrics on SGLang's own metrics page, if ``--enable-metrics`` is set."""

from __future__ import annotations

import functools
import threading

from kv_connector.exceptions import KvConnectorError
from kv_connector.metrics.figure_gains import GainMeter
from kv_connector.metrics.page_figures import EngineFigures, PageFigures
from kv_connector.runtime.facade import MessengerPort

INTERVAL_SECONDS = 1.0
LABELS = ("model_name", "engine_type")
"""SGLang's own labels, except those of the rank: the values of several ranks are added up."""


class MetricsPage:
    """Updates one messenger's metrics each second on a thread of its own, because an idle scheduler would not.

    The page shows all ranks of the server: SGLang's processes share files, whose values are summed.
    """

    def __init__(self, messenger: MessengerPort, model_name: str, engine_type: str) -> None:
        self._messenger = messenger
        self._gains = GainMeter()
        self._shown: EngineFigures = _page().of(model_name, engine_type)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-messenger-figures", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Updates the metrics a last time, without gauges, and ends the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        incarnation = self._messenger.opened.incarnation
        ended = False
        while not ended:
            ended = self._ended.wait(INTERVAL_SECONDS)
            try:
                stats = self._messenger.stats()
            except KvConnectorError:
                break  # closed, or lost, which the scheduler notices by itself
            self._shown.take(self._gains.gains(stats), {incarnation: stats.gauges})
        self._shown.take({}, {incarnation: {}})


@functools.cache
def _page() -> PageFigures:
    """One for each process: the metrics library registers each name once."""
    # The library reads SGLang's folder from the environment when it is imported: only a scheduler process has it.
    from prometheus_client import Counter, Gauge, Histogram

    gauge = functools.partial(Gauge, multiprocess_mode="livesum")
    return PageFigures("sglang:", list(LABELS), counter=Counter, gauge=gauge, histogram=Histogram)
