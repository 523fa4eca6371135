"""``kv-messenger bench``: kvperf out of the jar that the wheel has, without an engine."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS, PYTHON_ROOT

from kv_connector.cli import bench
from kv_connector.cli.main import main
from kv_connector.runtime import preflight

COMMAND = [sys.executable, "-m", "kv_connector", "bench"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(PYTHON_ROOT)}
pytestmark = pytest.mark.usefixtures("jar")
OWN_HOST = "127.0.0.57"
"""Loopback too. No other process listens there, so that a port is refused as soon as its listener has ended."""

SHORT = ["--page-bytes", "4K", "--page-count", "50", "--pool-bytes", "1M", "--rounds", "2", "--check"]


def bench_of(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
        env=ENVIRONMENT,
    )


def test_should_measure_two_processes_of_this_host() -> None:
    ended = bench_of(*SHORT, "--transport", "shm")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert (figures["transport"], figures["pageBytes"], figures["checked"]) == ("shm", 4096, True)
    assert figures["gbPerSecond"] > 0


def test_should_measure_between_a_side_that_listens_and_one_that_dials() -> None:
    listening = [*COMMAND, "--listen", f"{OWN_HOST}:0"]
    with subprocess.Popen(listening, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as target:
        assert target.stderr is not None
        try:
            at = re.search(r"listening at (\S+:\d+)", target.stderr.readline())
            assert at
            ended = bench_of("--dial", at[1], "--transport", "tcp", *SHORT)
        finally:
            target.terminate()
        assert target.wait(PROCESS_LIMIT_SECONDS) != 0
    with pytest.raises(ConnectionRefusedError), socket.create_connection((OWN_HOST, int(at[1].rpartition(":")[2]))):
        pass
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["transport"] == "tcp"


def test_should_say_what_kvperf_takes_and_refuse_the_rest() -> None:
    assert "--dial HOST:PORT" in bench_of("--help").stdout
    wrong = bench_of("--transport", "pigeon")
    assert wrong.returncode == 2
    assert 'kvperf: --transport is "pigeon", expected shm, tcp, libfabric or verbs' in wrong.stderr


def test_should_say_that_the_jar_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preflight.check_jar, "__defaults__", (tmp_path / "none.jar", "0"))
    printed: list[str] = []
    assert bench.run([], printed.append) == 1
    assert "none.jar is missing" in printed[0]


def test_should_leave_no_other_command_unknown_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["version", "--transport", "shm"])
    assert "unrecognized arguments: --transport shm" in capsys.readouterr().err
