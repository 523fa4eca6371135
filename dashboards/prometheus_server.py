"""A Prometheus that scrapes messengers' pages, and what it answers: for tests of the dashboards, and to show these."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FIND_LIMIT_SECONDS = 300
ANSWER_LIMIT_SECONDS = 600
LIMIT_SECONDS = 600.0
POLL_SECONDS = 0.05


class MissingPrometheusError(Exception):
    """There is none here, and why."""


def programs() -> Path:
    """The folder of prometheus and promtool."""
    script = HERE.parent / "examples" / "setup" / "find-prometheus"
    found = subprocess.run([script], capture_output=True, text=True, timeout=FIND_LIMIT_SECONDS, check=False)
    if found.returncode != 0:
        raise MissingPrometheusError(found.stderr.strip())
    return Path(found.stdout.strip())


class Prometheus:
    """One that runs. Its address is chosen by itself, on loopback."""

    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **asked: object) -> Any:
        """The data of an answer of its API."""
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=ANSWER_LIMIT_SECONDS) as answer:
            response = json.load(answer)
        assert response["status"] == "success", response
        return response["data"]

    def ask(self, query: str) -> list[Any]:
        """Each series of the query with its value of now."""
        return list(self.get("query", query=query)["result"])

    def ask_range(self, query: str, begun: float, ended: float, step_seconds: float) -> list[Any]:
        """Each series with its values between two moments."""
        return list(self.get("query_range", query=query, start=begun, end=ended, step=step_seconds)["result"])

    def wait_for(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} took more than {LIMIT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def wait_for_scrapes(self, target_count: int, count: int) -> None:
        """Each target was scraped so many times."""

        def done() -> bool:
            samples = self.ask("count_over_time(kv_messenger_sessions_open[10m])")
            return len(samples) == target_count and all(float(sample["value"][1]) >= count for sample in samples)

        self.wait_for(done, f"{count} scrapes of {target_count} messengers")


@contextlib.contextmanager
def scraping(targets: Sequence[str], home: Path) -> Iterator[Prometheus]:
    """Looks at them each second, under the job name of the alert rules, which it has loaded."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(HERE / "alerts.yml")],
        "scrape_configs": [{"job_name": "kv-messenger", "static_configs": [{"targets": list(targets)}]}],
    }
    (home / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        str(programs() / "prometheus"),
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    with (home / "log").open("w") as log, subprocess.Popen(command, stderr=log) as running:
        try:
            server = Prometheus(_listening(home / "log"))
            server.wait_for(lambda: _is_ready(server.address), "the start of Prometheus")
            yield server
        finally:
            running.terminate()


def _listening(log: Path) -> str:
    """Where it listens: it was left to choose."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r'msg="Listening on" address=(\S+)', log.read_text()):
            return f"http://{found[1]}"
        time.sleep(POLL_SECONDS)
    raise TimeoutError(log.read_text())


def _is_ready(address: str) -> bool:
    """It listens first, and answers 503 until it has read what it stored."""
    with (
        contextlib.suppress(urllib.error.HTTPError),
        urllib.request.urlopen(f"{address}/-/ready", timeout=ANSWER_LIMIT_SECONDS),
    ):
        return True
    return False


def plain(query: str, window_seconds: int) -> str:
    """A dashboard's query as Grafana sends it for all messengers."""
    return query.replace('"$instance"', '".*"').replace("$__rate_interval", f"{window_seconds}s")
