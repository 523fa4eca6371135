"""The messenger's figures on SGLang's own metrics page, where ``--enable-metrics`` asks for one."""

from __future__ import annotations

import functools
import threading

from kv_connector._facade import MessengerPort
from kv_connector.exceptions import KvConnectorError
from kv_connector.figure_gains import GainMeter
from kv_connector.page_figures import EngineFigures, PageFigures

INTERVAL_SECONDS = 1.0
LABELS = ("model_name", "engine_type")
"""SGLang's own, but for those of the rank: what several ranks have is added up."""


class MetricsPage:
    """Shows one messenger's figures, each second, from a thread of its own: an idle scheduler asks for nothing.

    A page is that of all ranks of the server: SGLang's processes share files, whose values are summed for it.
    """

    def __init__(self, messenger: MessengerPort, model_name: str, engine_type: str) -> None:
        self._messenger = messenger
        self._gains = GainMeter()
        self._shown: EngineFigures = _page().of(model_name, engine_type)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kv-messenger-figures", daemon=True)

    def start(self) -> None:
        """Begins to show them."""
        self._thread.start()

    def close(self) -> None:
        """Shows them once more, and then no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(INTERVAL_SECONDS)
            try:
                stats = self._messenger.stats()
            except KvConnectorError:
                return  # it is closed, or it has died, which the scheduler hears of by itself
            self._shown.take(self._gains.gains(stats), {self._messenger.opened.incarnation: stats.gauges})


@functools.cache
def _page() -> PageFigures:
    """One for a process: a library for metrics takes each name once."""
    # The library looks for SGLang's folder when it is imported: only a scheduler process has it.
    from prometheus_client import Counter, Gauge, Histogram

    gauge = functools.partial(Gauge, multiprocess_mode="livesum")
    return PageFigures("sglang:", list(LABELS), counter=Counter, gauge=gauge, histogram=Histogram)
