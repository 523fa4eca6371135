"""Standard output that is closed, full, without a reader or in another encoding, and an interrupt: never a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PROCESS_LIMIT_SECONDS
from test_timelines import FETCH
from test_wrong_servers import SERVERS, serving

NAME = "tränsfer"
COMMAND = "exec {python} -m kv_connector timeline {log}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = tmp_path / "log"
    made.write_text(FETCH.replace("t1", NAME), encoding="utf-8")
    return made


def run(command: str, log: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command.format(python=sys.executable, log=log)],
        env=environment,
        capture_output=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "status", "given"),
    [
        (COMMAND, 0, ""),
        (f"{COMMAND} <&- >&-", 0, ""),
        (f"{COMMAND} 2>&-", 0, ""),
        (f"{COMMAND} >/dev/full", 1, "standard output cannot be written ("),
    ],
)
def test_should_end_well_whatever_standard_output_is(
    command: str, status: int, given: str, log: Path, environment: dict[str, str]
) -> None:
    done = run(command, log, environment)
    errors = done.stderr.decode()
    assert done.returncode == status, errors
    assert errors.startswith(given)
    assert len(errors.splitlines()) == bool(given)


def test_should_end_in_silence_when_its_reader_has_seen_enough(log: Path, environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kv_connector", "timeline", str(log)]
    done = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=PROCESS_LIMIT_SECONDS, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp037"])
def test_should_print_every_character_somehow(encoding: str, log: Path, environment: dict[str, str]) -> None:
    done = run(COMMAND, log, {**environment, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    assert NAME in shown or NAME.encode("ascii", "backslashreplace").decode() in shown


@pytest.mark.parametrize(
    "command", ["--help", *(f"{name} --help" for name in ("compare", "drain", "ping", "timeline"))]
)
def test_should_print_help_in_ascii(command: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kv_connector", *command.split()],
        env={**environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=PROCESS_LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\\u" not in done.stdout


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children are ended by an interrupt, also where this run was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_should_end_at_an_interrupt_without_a_trace(environment: dict[str, str]) -> None:
    with serving(SERVERS["hangs"]) as page:
        waiting = subprocess.Popen(
            [sys.executable, "-m", "kv_connector", "compare", f"http://{page}", f"http://{page}"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        while f":{int(page.rpartition(':')[2]):04X} 01" not in Path(f"/proc/{waiting.pid}/net/tcp").read_text():
            assert waiting.poll() is None
        os.kill(waiting.pid, signal.SIGINT)
        _, errors = waiting.communicate(timeout=PROCESS_LIMIT_SECONDS)
    assert (waiting.returncode, errors) == (130, b"interrupted\n")
