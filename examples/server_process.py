"""Starts and stops the servers of demos and end-to-end tests, and sends them requests.

Every server is a process group of its own, listens on loopback, logs to a file in the run's folder, and ends with the
run. Its start is awaited by health checks, not by fixed delays. A server that ends before it is healthy fails the run
at once, with the end of its log. Uses the standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Protocol, Self

LOOPBACK = "127.0.0.1"
MODEL_NAME = "tiny"
START_LIMIT_SECONDS = 600.0  # two servers on two busy cores have taken 170 s
STOP_LIMIT_SECONDS = 30.0
REQUEST_LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.25
PROGRESS_SECONDS = 10.0
LOG_TAIL_LINES = 40
LOG_CAUSE_LINES_MAX = 60
ERROR_MARKS = (" ERROR ", "Traceback (most recent call last)")
FIRST_PORT = 20_000
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Servers are on this host, whatever http_proxy says."""
PORT_LOCKS = Path(tempfile.gettempdir()) / f"kv-messenger-ports-{getpass.getuser()}"
_given_ports: dict[int, IO[bytes]] = {}
"""The ports given so far, with the locks that reserve them against other runs."""


class ServerFailed(RuntimeError):
    """A server ended, or did not become healthy in time."""


def free_port(count: int = 1) -> int:
    """The first of ``count`` consecutive free ports, outside of the ephemeral range; no port is given twice.

    Engines open dozens of connections while they start, so an ephemeral port that is free now may be taken before the
    server binds it. Locks keep concurrent runs from choosing the same ports.
    """
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    while True:
        first = random.randrange(min(FIRST_PORT, end - count), end - count + 1)
        ports = range(first, first + count)
        if all(port not in _given_ports and may_listen(port) and locked(port) for port in ports):
            return first


def locked(port: int) -> bool:
    """Locks a port until this process ends; False if another process has locked it."""
    PORT_LOCKS.mkdir(exist_ok=True)
    lock = open(PORT_LOCKS / str(port), "wb")  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _given_ports[port] = lock
    return True


def may_listen(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def wait_until(condition: Callable[[], bool], limit_seconds: float, what: str) -> None:
    """Returns as soon as ``condition`` holds; raises TimeoutError after the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit_seconds:.0f} s in vain: {what}")
        time.sleep(POLL_SECONDS)


class StartedProcess(Protocol):
    """The interface of a server's process; ``subprocess.Popen`` implements it."""

    @property
    def pid(self) -> int:
        """The id of the process and of its process group."""

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status; raises ``subprocess.TimeoutExpired`` if it does not end in time."""

    def send_signal(self, number: int, /) -> None:
        """Sends a signal; does nothing if the process has ended."""


class Server:
    """One server process. Used by one thread, except for requests, which any thread may send."""

    def __init__(
        self, name: str, command: Sequence[str], port: int, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self.log_path = folder / f"{name}.log"
        self.command = list(command)
        self.environment = {**os.environ, **(environment or {})}
        self._process: StartedProcess | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.started_seconds = 0.0

    def start(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.started_seconds = time.monotonic()
        self._scratch = tempfile.TemporaryDirectory(prefix="kvm-", ignore_cleanup_errors=True)
        self.environment["TMPDIR"] = self._scratch.name  # engines leave their sockets there
        # Torch's default cache of compiled code; in the server's own folder each start would compile again.
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        self.environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        with open(self.log_path, "ab") as log:
            log.write(f"$ {' '.join(self.command)}\n".encode())
            log.flush()
            self._process = self._launch(log)

    def _launch(self, log: BinaryIO) -> StartedProcess:
        """Starts ``command`` in a process group of its own, with its output in ``log``."""
        return subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def healthy(self) -> bool:
        if not self.alive():
            raise ServerFailed(f"{self.name} ended before it was healthy; the end of its log:\n{self.log_tail()}")
        return self.answers()

    def answers(self) -> bool:
        """Whether the health check succeeds."""
        try:
            with NO_PROXY.open(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def wait_healthy(self, limit_seconds: float = START_LIMIT_SECONDS) -> None:
        try:
            wait_until(self.healthy, limit_seconds, f"{self.name} is healthy")
        except TimeoutError as late:
            raise ServerFailed(f"{late}; the end of its log:\n{self.log_tail()}") from late

    def wait_ended(self, limit_seconds: float = START_LIMIT_SECONDS) -> int:
        """Waits for a server that is expected to end by itself; returns its exit status."""
        wait_until(lambda: not self.alive(), limit_seconds, f"{self.name} ends")
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Sends SIGTERM to the server, then SIGKILL to the rest of its process group."""
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_LIMIT_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._remove_scratch()

    def kill(self) -> None:
        """Sends SIGKILL to the whole process group, without an orderly shutdown."""
        process = self._process
        assert process is not None, f"{self.name} was not started"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.send_signal(signal.SIGKILL)  # one that was forked just now has no group of its own yet
        process.wait()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """The first error in the log, and its end: engines log the cause before its consequences."""
        lines = self.log().splitlines()
        before, end = lines[:-LOG_TAIL_LINES], lines[-LOG_TAIL_LINES:]
        causes = [place for place, line in enumerate(before) if any(mark in line for mark in ERROR_MARKS)]
        cause = before[causes[0] :][:LOG_CAUSE_LINES_MAX] if causes else []
        return "\n".join([*cause, *(["…"] if cause else []), *end])

    def get(self, path: str) -> str:
        with NO_PROXY.open(self.url + path, timeout=REQUEST_LIMIT_SECONDS) as answer:
            return str(answer.read().decode())

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Posts JSON; returns the JSON answer, {} if it is empty, or {"error": …, "status": …} for an HTTP error."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}
        )
        try:
            with NO_PROXY.open(request, timeout=REQUEST_LIMIT_SECONDS) as answer:
                return dict(json.loads(answer.read() or b"null") or {})
        except urllib.error.HTTPError as refused:
            return {"error": refused.read().decode(errors="replace"), "status": refused.code}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a Prometheus metric's samples with these labels."""
        return metric_sum(self.get("/metrics"), name, labels)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def metric_sum(text: str, name: str, labels: Mapping[str, str]) -> float:
    total = 0.0
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name and all(f'{key}="{wanted}"' in head for key, wanted in labels.items()):
            total += float(value)
    return total


def core_binding(core: int, rank_count: int = 1) -> str:
    """One core per rank, if the machine has enough: on a common core two engines run at half speed."""
    cores = sorted(os.sched_getaffinity(0))
    return "|".join(str(cores[(core + rank) % len(cores)]) for rank in range(rank_count))


def start_all(servers: Sequence[Server], progress: Callable[[str], None]) -> None:
    """Starts all servers in parallel (imports take most of a start) and returns when all are healthy."""
    for server in servers:
        server.start()
    waiting = list(servers)
    printed = time.monotonic()
    while waiting:
        for server in [s for s in waiting if s.healthy()]:
            waiting.remove(server)
            progress(f"{server.name} is ready after {time.monotonic() - server.started_seconds:.0f} s")
        if waiting and time.monotonic() - printed > PROGRESS_SECONDS:
            printed = time.monotonic()
            progress("… starting " + ", ".join(s.name for s in waiting))
        late = [s for s in waiting if time.monotonic() - s.started_seconds > START_LIMIT_SECONDS]
        if late:
            raise ServerFailed(f"{late[0].name} was not healthy in time; the end of its log:\n{late[0].log_tail()}")
        time.sleep(POLL_SECONDS)


def greedy_completion(prompt: str, max_tokens: int) -> dict[str, Any]:
    """A request's body. It keeps special tokens and ignores the end token, so that all tokens can be compared."""
    return {
        "model": MODEL_NAME,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }


def complete(
    server: Server,
    prompt: str,
    max_tokens: int,
    transfer: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Requests one greedy completion; returns the JSON answer."""
    body = greedy_completion(prompt, max_tokens)
    if transfer is not None:
        body["kv_transfer_params"] = dict(transfer)
    return server.post("/v1/completions", body, headers)


def words_of(answer: Mapping[str, Any]) -> list[str]:
    """The words of an answer; one word is one token of the tiny models."""
    if "choices" not in answer:
        raise AssertionError(f"the request failed: {answer}")
    return str(answer["choices"][0]["text"]).split()
