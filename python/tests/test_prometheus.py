"""Each query of dashboard and alert rules is asked of a real Prometheus that has scraped a real messenger."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PROCESS_LIMIT_SECONDS, PYTHON_ROOT, REPOSITORY

from kv_connector import _preflight

DASHBOARDS = REPOSITORY / "dashboards"
FIND_LIMIT_SECONDS = 300
DATA_LIMIT_SECONDS = 60.0
SCRAPES = 3
COMPARED = re.compile(r" (?:==|[<>]) [\d.]+$")

MESSENGER = """
import sys
from kv_connector import Messenger, parse_options
from kv_connector.cli.host_pages import HostPages
pages = HostPages("scraped", 4096, 4)
messenger = Messenger.open(parse_options({"listen_port": 0}, role="both", engine_id="scraped"), pages.geometry(16))
print(f"metrics at {messenger.opened.metrics_port}", flush=True)
sys.stdin.read()
messenger.close()
"""


def panels() -> Iterator[tuple[str, str]]:
    for panel in json.loads((DASHBOARDS / "kv-messenger.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def alerts() -> Iterator[tuple[str, str]]:
    """Rules by name. Of a query what is compared: it gives data where nothing is wrong, too."""
    text = (DASHBOARDS / "alerts.yml").read_text()
    for name, query in re.findall(r"- alert: (\w+)\n +expr: '(.+)'\n", text):
        whole = COMPARED.sub("", query)
        assert whole != query, f"{name} compares nothing"
        yield name, whole


@pytest.fixture(scope="module")
def prometheus() -> Path:
    """The folder of its programs."""
    found = subprocess.run(
        [str(REPOSITORY / "examples" / "setup" / "find-prometheus")],
        capture_output=True,
        text=True,
        timeout=FIND_LIMIT_SECONDS,
        check=False,
    )
    if found.returncode != 0:
        pytest.skip(f"no Prometheus: {found.stderr.strip()}")
    return Path(found.stdout.strip())


@pytest.fixture(scope="module")
def metrics_port(jar: _preflight.Jar, java: _preflight.JavaRuntime) -> Iterator[int]:
    """A messenger's."""
    assert jar.path.exists()
    assert java.launcher.exists()
    with subprocess.Popen(
        [sys.executable, "-c", MESSENGER], cwd=PYTHON_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        found = next((said for line in running.stdout if (said := re.match(r"metrics at (\d+)", line))), None)
        assert found is not None, "no messenger was opened"
        yield int(found[1])
        running.communicate("", timeout=PROCESS_LIMIT_SECONDS)


@pytest.fixture(scope="module")
def api(prometheus: Path, metrics_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has scraped it some times."""
    home = tmp_path_factory.mktemp("prometheus")
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DASHBOARDS / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "kv-messenger", "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}]}
        ],
    }
    (home / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        str(prometheus / "prometheus"),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with (home / "log").open("w") as log, subprocess.Popen(command, stderr=log) as running:
        try:
            address = listening(home / "log")
            until_ready(address)
            until_scraped(address)
            yield address
        finally:
            running.terminate()


def listening(log: Path) -> str:
    """Where it listens: it was left to choose."""
    deadline = time.monotonic() + DATA_LIMIT_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r'msg="Listening on" address=(\S+)', log.read_text()):
            return f"http://{found[1]}"
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def until_ready(address: str) -> None:
    """It listens first, and answers 503 until it has read what it stored."""
    deadline = time.monotonic() + DATA_LIMIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{address}/-/ready", timeout=10):
            return
        time.sleep(0.05)
    raise AssertionError("Prometheus did not become ready")


def until_scraped(address: str) -> None:
    deadline = time.monotonic() + DATA_LIMIT_SECONDS
    while time.monotonic() < deadline:
        samples = ask(address, "count_over_time(kv_messenger_sessions_open[1m])")
        if samples and float(samples[0]["value"][1]) >= SCRAPES:
            return
        time.sleep(0.2)
    raise AssertionError("the messenger was not scraped")


def ask(address: str, query: str) -> list[Any]:
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        said = json.load(answer)
    assert said["status"] == "success", said
    return list(said["data"]["result"])


def test_should_have_data_for_every_panel(api: str) -> None:
    asked = list(panels())
    assert len(asked) > 30
    filled = [(title, q.replace('"$instance"', '".*"').replace("$__rate_interval", "1m")) for title, q in asked]
    assert [(title, query) for title, query in filled if not ask(api, query)] == []


def test_should_have_data_for_every_alert_rule(api: str) -> None:
    asked = list(alerts())
    assert len(asked) > 10
    assert [(name, query) for name, query in asked if not ask(api, query)] == []


def test_should_find_that_a_query_has_no_data(api: str) -> None:
    assert ask(api, "rate(kv_messenger_fetches_failed[1m])") == []


def test_should_load_every_rule_and_fire_none(api: str) -> None:
    deadline = time.monotonic() + DATA_LIMIT_SECONDS
    health: set[str] = {"unknown"}
    while "unknown" in health and time.monotonic() < deadline:
        with urllib.request.urlopen(f"{api}/api/v1/rules", timeout=10) as answer:
            (group,) = json.load(answer)["data"]["groups"]
        health = {rule["health"] for rule in group["rules"]}
    assert health == {"ok"}
    assert {rule["name"] for rule in group["rules"]} == {name for name, _ in alerts()}
    assert [rule["name"] for rule in group["rules"] if rule["state"] != "inactive"] == []


def test_should_be_rules_that_promtool_takes(prometheus: Path) -> None:
    rules = str(DASHBOARDS / "alerts.yml")
    subprocess.run([str(prometheus / "promtool"), "check", "rules", rules], check=True, timeout=PROCESS_LIMIT_SECONDS)
