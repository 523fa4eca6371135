"""What figures have gained, and how buckets become the values that a metrics page takes."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import Counter
from typing import Any

import pytest

from kv_connector import Stats
from kv_connector.metrics.figure_gains import GainMeter, add_gains, observations
from kv_connector.metrics.page_figures import PageFigures
from kv_connector.metrics.table import BUCKET_BOUNDS_SECONDS as BOUNDS

TIMES = "kv_messenger_fetch_seconds"
FAILED = "kv_messenger_fetches_failed"


def counts_of(values: list[float]) -> list[int]:
    found = Counter(bisect_left(BOUNDS, value) for value in values)
    return [found[index] for index in range(len(BOUNDS) + 1)]


def stats(values: list[float], failed: dict[str, float] | None = None) -> Stats:
    failed = failed or {}
    return Stats(
        {FAILED: sum(failed.values())},
        {},
        {FAILED: failed},
        {TIMES: {"buckets": counts_of(values), "sum": sum(values)}},
    )


@pytest.mark.parametrize("seed", range(200))
def test_should_give_values_of_the_same_buckets_and_the_same_sum(seed: int) -> None:
    chosen = random.Random(seed)
    top = chosen.choice([1e-4, 1.0, BOUNDS[-1] * 3])
    values = [chosen.uniform(1e-6, top) for _ in range(chosen.randint(1, 40))]
    if seed % 5 == 0:
        values.append(chosen.choice(BOUNDS))  # on an edge
    given = list(observations(BOUNDS, counts_of(values), sum(values)))
    assert counts_of(given) == counts_of(values)
    assert math.isclose(sum(given), sum(values), rel_tol=1e-9)


def test_should_give_nothing_of_nothing() -> None:
    assert list(observations(BOUNDS, [0] * (len(BOUNDS) + 1), 0.0)) == []


def test_should_report_each_gain_once() -> None:
    meter = GainMeter()
    first = meter.gains(stats([0.1, 0.2], {"time_limit": 1, "damaged": 0}))
    assert first["counters"] == {FAILED: 1}
    assert first["reasons"] == {FAILED: {"time_limit": 1}}
    assert sum(first["histograms"][TIMES]["buckets"]) == 2
    second = meter.gains(stats([0.1, 0.2, 0.4], {"time_limit": 1, "damaged": 2}))
    assert second["reasons"] == {FAILED: {"damaged": 2}}
    assert sum(second["histograms"][TIMES]["buckets"]) == 1
    assert second["histograms"][TIMES]["sum"] == pytest.approx(0.4)
    assert not any(meter.gains(stats([0.1, 0.2, 0.4], {"time_limit": 1, "damaged": 2})).values())


def test_should_add_up_what_several_messengers_gained() -> None:
    total: dict[str, Any] = {}
    for values in ([0.1], [0.1, 30.0]):
        add_gains(total, GainMeter().gains(stats(values, {"time_limit": 1})))
    assert total["counters"] == {FAILED: 2}
    assert total["reasons"] == {FAILED: {"time_limit": 2}}
    assert total["histograms"][TIMES] == {"buckets": counts_of([0.1, 0.1, 30.0]), "sum": pytest.approx(30.2)}


def test_should_show_two_messengers_as_one_engine() -> None:
    library = pytest.importorskip("prometheus_client")
    registry = library.CollectorRegistry()
    page = PageFigures(
        "engine:",
        ["engine"],
        **{
            kind: lambda made=made, **named: made(registry=registry, **named)
            for kind, made in (
                ("counter", library.Counter),
                ("gauge", library.Gauge),
                ("histogram", library.Histogram),
            )
        },
    )
    engine = page.of("0")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"engine:{name}", {"engine": "0", **labels})

    assert value(f"{FAILED}_total", reason="damaged") == 0, "a rate needs the series before its first count"
    for messenger, quarantined in (("a", 7), ("b", 2)):
        gains = GainMeter().gains(stats([0.1], {"damaged": 1}))
        engine.take(gains, {messenger: {"kv_messenger_pages_quarantined": quarantined}})
    assert value("kv_messenger_pages_quarantined") == 9
    engine.take({}, {"b": {"kv_messenger_pages_quarantined": 0}})
    assert value("kv_messenger_pages_quarantined") == 7, "one messenger's gauge replaces its own alone"
    assert value(f"{FAILED}_total", reason="damaged") == 2
    assert value(f"{TIMES}_count") == 2
    assert value(f"{TIMES}_sum") == pytest.approx(0.2)
    assert value(f"{TIMES}_bucket", le="0.1024") == 2
    assert value(f"{TIMES}_bucket", le="0.0512") == 0
    engine.take({"counters": {"kv_messenger_of_tomorrow": 1}, "reasons": {FAILED: {"of_tomorrow": 1}}}, {})
