"""Each query of dashboards and alert rules is asked of a real Prometheus that has scraped messengers that move KV."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS, REPOSITORY
from moving_pair import go, metrics_ports, moving
from prometheus_server import MissingPrometheusError, Prometheus, plain, programs, scraping

from kv_connector.runtime import preflight

DASHBOARDS = REPOSITORY / "dashboards"
SCRAPES_AT_REST = 2
"""A rate needs a series before its first count."""
WINDOW_SECONDS = 3600
"""What grew once, at the start, is to be in it until the last query, on a slow machine too."""
COMPARED = re.compile(r" (?:==|[<>]) [\d.]+$")
MOVED = (
    "kv_messenger_sent_bytes_total",
    'kv_messenger_transport_sent_bytes_total{transport="shm"}',
    'kv_messenger_peer_sent_bytes_total{peer="decoder"}',
    'kv_messenger_peer_fetches_arrived_total{peer="prefiller"}',
    'kv_messenger_fetches_failed_total{reason="not_connected"}',
    "kv_messenger_connect_seconds_count",
)


def panels() -> Iterator[tuple[str, str]]:
    for file in sorted(DASHBOARDS.glob("kv-messenger-*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{file.stem}: {panel['title']}", plain(target["expr"], WINDOW_SECONDS)


def alerts() -> Iterator[tuple[str, str]]:
    """Rules by name. Of a query what is compared: it gives data where nothing is wrong, too."""
    text = (DASHBOARDS / "alerts.yml").read_text()
    for name, query in re.findall(r"- alert: (\w+)\n +expr: '(.+)'\n", text):
        whole = COMPARED.sub("", query)
        assert whole != query, f"{name} compares nothing"
        yield name, whole


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return programs() / "promtool"
    except MissingPrometheusError as missing:
        pytest.skip(f"no Prometheus: {missing}")


@pytest.fixture(scope="module")
def prometheus(
    promtool: Path,
    jar: preflight.Jar,
    java: preflight.JavaRuntime,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Prometheus]:
    """One that has seen KV move."""
    assert promtool.exists()
    assert jar.path.exists()
    assert java.launcher.exists()
    with moving() as pair:
        targets = [f"127.0.0.1:{port}" for port in metrics_ports(pair)]
        with scraping(targets, tmp_path_factory.mktemp("prometheus")) as server:
            server.wait_for_scrapes(len(targets), SCRAPES_AT_REST)
            go(pair)
            server.wait_for(lambda: all(moved(server, name) for name in MOVED), "a first figure of each kind")
            yield server


def moved(server: Prometheus, name: str) -> bool:
    """Whether its growth was seen by two scrapes."""
    return any(float(sample["value"][1]) > 0 for sample in server.ask(f"increase({name}[{WINDOW_SECONDS}s])"))


def values(server: Prometheus, query: str) -> list[float]:
    return [float(sample["value"][1]) for sample in server.ask(query)]


def test_should_have_data_for_every_panel(prometheus: Prometheus) -> None:
    asked = list(panels())
    assert len(asked) > 60
    assert [(title, query) for title, query in asked if not values(prometheus, query)] == []


def test_should_have_a_time_for_every_part_of_a_transfer(prometheus: Prometheus) -> None:
    """A quantile of nothing is no number."""
    asked = [(title, query) for title, query in panels() if "_seconds_" in query]
    assert len(asked) > 20
    assert [(title, query) for title, query in asked if not all(map(math.isfinite, values(prometheus, query)))] == []


def test_should_have_data_for_every_alert_rule(prometheus: Prometheus) -> None:
    asked = list(alerts())
    assert len(asked) > 10
    assert [(name, query) for name, query in asked if not values(prometheus, query)] == []


def test_should_find_that_a_query_has_no_data(prometheus: Prometheus) -> None:
    assert values(prometheus, "rate(kv_messenger_fetches_failed[1m])") == []


def test_should_load_every_rule(prometheus: Prometheus) -> None:
    """Some fetches are asked of a port without a prefiller, and no layer leaves early: two rules may fire, no other."""

    def rules() -> list[dict[str, str]]:
        (group,) = prometheus.get("rules")["groups"]
        return list(group["rules"])

    prometheus.wait_for(lambda: all(rule["health"] != "unknown" for rule in rules()), "a look at each rule")
    assert {rule["health"] for rule in rules()} == {"ok"}
    assert {rule["name"] for rule in rules()} == {name for name, _ in alerts()}
    expected = {"KvMessengerFetchesFail", "KvMessengerLayersLeaveLate"}
    assert {rule["name"] for rule in rules() if rule["state"] != "inactive"} <= expected


def test_should_be_rules_that_promtool_takes(promtool: Path) -> None:
    rules = str(DASHBOARDS / "alerts.yml")
    subprocess.run([str(promtool), "check", "rules", rules], check=True, timeout=PROCESS_LIMIT_SECONDS)
