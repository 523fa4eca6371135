"""``kv-messenger ping``: two processes with a JVM each, as on two hosts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import PYTHON_ROOT

from kv_connector import Options
from kv_connector.cli import ping
from kv_connector.cli.main import main
from kv_connector.configuration.options import check_options, parse_options
from kv_connector.exceptions import OptionError
from kv_connector.runtime.facade import Log, Messenger

COMMAND = [sys.executable, "-m", "kv_connector.cli.main", "ping"]
LIMIT_SECONDS = 900
SECRET = "a secret of this test"


def config(role: str, **options: Any) -> list[str]:
    extra = {"transports": ["tcp"], "aot_cache": False, "shared_secret": SECRET} | options
    transfer_config = {"kv_connector": "KvMessengerConnector", "kv_role": role, "kv_connector_extra_config": extra}
    return ["--kv-transfer-config", json.dumps(transfer_config)]


ENVIRONMENT = os.environ | {"PYTHONPATH": str(PYTHON_ROOT)}


@pytest.fixture(scope="module")
def answering() -> Iterator[str]:
    """Where it answers, in a script's background. It must say by which transport it sends, and end in good order."""
    command = [*COMMAND, "--answer", *config("kv_producer", listen_port=0)]
    background = ["env", "--ignore-signal=INT", *command]
    with subprocess.Popen(background, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as side:
        assert side.stdout is not None
        try:
            line = side.stdout.readline()
            found = re.match(r"answers at (\S+:\d+) until", line)
            assert found, line
            yield found[1]
        finally:
            side.send_signal(signal.SIGINT)
            stuck = threading.Timer(LIMIT_SECONDS, side.kill)
            stuck.start()
        rest = side.stdout.read()
        stuck.cancel()
        assert side.wait() == 0, rest
    assert re.search(r"^sends to .* over tcp$", rest, re.MULTILINE), rest


def asked(at: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, at, *config("kv_consumer", **options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, env=ENVIRONMENT)


def test_should_say_how_fast_pages_come(answering: str) -> None:
    ended = asked(answering)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^first page after [\d.]+ ms: ", ended.stdout, re.MULTILINE)
    assert re.search(r"^one page of 64 KiB: [\d.]+ ms median, [\d.]+ ms worst of 200,", ended.stdout, re.MULTILINE)
    assert re.search(r"^1024 pages, 64 MiB: [\d.]+ GB/s median, ", ended.stdout, re.MULTILINE)
    assert ended.stdout.endswith("every byte was compared\n")


def test_should_say_why_no_page_comes(answering: str) -> None:
    ended = asked(answering, shared_secret="another secret, long enough")
    assert ended.returncode == 1
    assert "shared_secret" in ended.stdout


def test_should_name_an_address_where_nothing_answers() -> None:
    ended = asked("127.0.0.1:1")
    assert ended.returncode == 1
    assert "prefiller 127.0.0.1:1 cannot be reached" in ended.stdout


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:²"])
def test_should_refuse_what_is_no_address(text: str) -> None:
    with pytest.raises(OptionError, match=re.escape(f"the prefiller is {text!r}, expected HOST:PORT")):
        ping.address(text)


def test_should_take_an_address_of_either_kind() -> None:
    assert ping.address("host.example:14600") == ("host.example", 14600)
    assert ping.address("[fd00::1]:14600") == ("fd00::1", 14600)


def options_of(role: Any) -> Options:
    return parse_options({}, role=role, engine_id="e")


def test_should_ask_as_a_decoder_beside_whatever_listens_there() -> None:
    fitted = ping.fitting(options_of("both"), answers=False)
    assert (fitted.role, fitted.listen_port, fitted.metrics_port) == ("decoder", 0, ping.NO_PORT)


def test_should_say_on_which_host_options_belong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ping", "127.0.0.1:1", *config("kv_producer")]) == 2
    assert "these are a prefiller's options, and a prefiller answers" in capsys.readouterr().err
    assert main(["ping", "--answer", *config("kv_consumer")]) == 2
    assert "these are a decoder's options, and a decoder asks" in capsys.readouterr().err


def test_should_not_call_the_end_of_a_ping_a_warning() -> None:
    printed: list[str] = []
    answers = ping.Answering(Messenger.__new__(Messenger), printed.append)
    for event in (Log("info", "noise"), Log("warning", "the connection ended"), Log("error", "a bug")):
        answers._take(event)
    assert printed == ["the connection ended\n", "error: a bug\n"]


@pytest.mark.parametrize("seconds", [0.5, 30.0, 3600.0])
def test_should_wait_longer_for_pages_than_for_the_connection(seconds: float) -> None:
    """Else a server that is no messenger is said to send no KV in time."""
    assert ping.fetch_limit_seconds(check_options({"connect_limit_seconds": seconds})) > seconds
