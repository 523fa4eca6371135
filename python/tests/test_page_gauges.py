"""What an engine's metrics page shows of messengers that come and go: sums over those that are open."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector import Stats
from kv_connector.exceptions import MessengerError
from kv_connector.metrics.page_figures import PageFigures
from kv_connector.metrics.table import GAUGES
from kv_connector.sglang import metrics_page
from kv_connector.sglang.metrics_page import MetricsPage

PREFIX = "kv_messenger_"


class Page:
    """What a metrics library shows: each gauge's value by its labels."""

    def __init__(self) -> None:
        self.values: dict[str, float] = dict.fromkeys(GAUGES, 0.0)
        self.figures = PageFigures("", ["engine"], counter=self._metric, gauge=self._metric, histogram=self._metric)

    def _metric(self, *, name: str, **_named: Any) -> Any:
        def set_to(value: float) -> None:
            self.values[name.removeprefix(PREFIX)] = value

        series = SimpleNamespace(set=set_to, inc=lambda _: None, observe=lambda _: None)
        return SimpleNamespace(labels=lambda *_: series)

    def shows(self, gauges: Mapping[str, float]) -> bool:
        return self.values == dict.fromkeys(GAUGES, 0.0) | {name.removeprefix(PREFIX): gauges[name] for name in gauges}


def some_gauges(chosen: random.Random) -> dict[str, float]:
    return {PREFIX + name: float(chosen.randrange(100)) for name in chosen.sample(sorted(GAUGES), 3)}


@pytest.mark.parametrize("seed", range(100))
def test_should_show_the_sum_over_those_that_are_open(seed: int) -> None:
    """A messenger that is closed, as in an engine that sleeps, reports no gauge once; the next one has another name."""
    chosen = random.Random(seed)
    page, opened = Page(), iter(range(1000))
    figures = page.figures.of("0")
    last: dict[str, dict[str, float]] = {}
    for _ in range(20):
        if last and chosen.random() < 0.3:
            report: dict[str, dict[str, float]] = {name: {} for name in chosen.sample(sorted(last), 1)}
        elif last and chosen.random() < 0.5:
            report = {chosen.choice(sorted(last)): some_gauges(chosen)}
        else:
            report = {str(next(opened)): some_gauges(chosen)}
        figures.take({}, report)
        last = {name: gauges for name, gauges in (last | report).items() if gauges}
        names = {name for gauges in last.values() for name in gauges}
        assert page.shows({name: sum(gauges.get(name, 0.0) for gauges in last.values()) for name in names})


class AMessenger:
    """Only its figures; ``stats`` fails once it is lost."""

    def __init__(self, gauges: dict[str, float]) -> None:
        self.opened = SimpleNamespace(incarnation=str(id(self)))
        self.gauges = gauges
        self.is_lost = False

    def stats(self) -> Stats:
        if self.is_lost:
            raise MessengerError("it is lost")
        return Stats({}, dict(self.gauges))


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_should_show_nothing_of_a_messenger_whose_page_is_closed(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, is_lost: bool
) -> None:
    """SGLang closes it when its memory or its role goes; a role's labels are never shown again."""
    monkeypatch.setattr(metrics_page, "INTERVAL_SECONDS", 0.001)
    page, gauges = Page(), some_gauges(random.Random(seed))
    monkeypatch.setattr(metrics_page, "_page", lambda: page.figures)
    messenger: Any = AMessenger(gauges)
    shown = MetricsPage(messenger, "model", "prefill")
    shown.start()
    limit_seconds = time.monotonic() + 60.0
    while not page.shows(gauges):
        assert time.monotonic() < limit_seconds
    messenger.is_lost = is_lost
    shown.close()
    assert page.shows({})
