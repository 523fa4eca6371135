"""Servers of the test bed that are forked from a process with their engine's imports done, see warm_launcher.py.

The demo and whatever is not `python -m` start as users start them.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from fabric import environment_of_fabric
from server_process import Server, ServerFailed, StartedProcess
from servers import ENGINE_ENVIRONMENT

LAUNCHER_LIMIT_SECONDS = 600.0
PRELOADED = (
    "setproctitle",
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)
IN_NETWORK = ["ip", "netns", "exec"]
"""Before the name of a network namespace, and a command that is to run there."""
PACKET_BYTES_MAX = 4096
PROGRAM = Path(__file__).with_name("warm_launcher.py")


class ForkedProcess:
    """A server that the launcher forked, with what `Server` asks of a `subprocess.Popen`. Used by one thread."""

    def __init__(self, status: socket.socket, launcher_log: Path) -> None:
        self._status = status
        self._launcher_log = launcher_log
        self.returncode: int | None = None
        self.pid = self._answer("pid", LAUNCHER_LIMIT_SECONDS)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._answer("status", timeout)
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _answer(self, what: str, limit_seconds: float | None) -> int:
        self._status.settimeout(limit_seconds)
        try:
            packet = self._status.recv(PACKET_BYTES_MAX)
        except (TimeoutError, BlockingIOError) as silent:
            raise subprocess.TimeoutExpired(f"the launcher's {what}", limit_seconds or 0) from silent
        if not packet:
            raise ServerFailed(
                f"the launcher has ended, with all that it started; its log: {end_of(self._launcher_log)}"
            )
        return int(json.loads(packet)[what])


class WarmLauncher:
    """The launcher's process, started with the first server. Starts are made by one thread at a time."""

    def __init__(self, preloaded: Sequence[str], environment: Callable[[], Mapping[str, str]]) -> None:
        self._preloaded = preloaded
        self._environment = environment
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._log = Path(os.devnull)

    def start(self, server: Server, network: str, module: str, arguments: list[str], log: BinaryIO) -> ForkedProcess:
        with self._lock:
            control = self._control or self._begin(server.log_path.parent)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            asked = {"module": module, "arguments": arguments, "environment": server.environment, "network": network}
            with theirs:
                try:
                    socket.send_fds(control, [json.dumps(asked).encode()], [log.fileno(), theirs.fileno()])
                except OSError as lost:
                    raise ServerFailed(f"the launcher has ended; its log: {end_of(self._log)}") from lost
        return ForkedProcess(ours, self._log)

    def _begin(self, folder: Path) -> socket.socket:
        self._log = folder / "launcher.log"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno()), *self._preloaded],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **self._environment()},
                start_new_session=True,
            )
        ours.settimeout(LAUNCHER_LIMIT_SECONDS)
        if not ours.recv(PACKET_BYTES_MAX):
            raise ServerFailed(f"the launcher did not come up; its log: {end_of(self._log)}")
        self._control = ours
        return ours

    @property
    def pid(self) -> int:
        assert self._process is not None, "the launcher was not started"
        return self._process.pid

    def stop(self) -> None:
        """Servers that still run end with it."""
        if self._process is not None and self._control is not None:
            self._control.close()
            try:
                self._process.wait(LAUNCHER_LIMIT_SECONDS)
            finally:
                self._process.kill()
        self._process = self._control = None


def environment_of_vllm() -> dict[str, str]:
    """With what vLLM's CPU platform preloads into the processes that it spawns: a fork has its parent's libraries."""
    vllm, torch = packages_of("vllm"), packages_of("torch")
    allocators = glob.glob(f"{vllm}/libs/libtcmalloc*.so*")
    openmps = glob.glob(f"{torch.parent}/torch.libs/libgomp*.so*") + glob.glob(f"{torch}/lib/libgomp*.so*")
    libraries = [*allocators[:1], *openmps[:1], *filter(None, [os.environ.get("LD_PRELOAD")])]
    return {
        **ENGINE_ENVIRONMENT,
        **environment_of_fabric(),
        "LD_PRELOAD": ":".join(libraries),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start its threads when it is imported; what is forked must have one
    }


def packages_of(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is not installed here"
    assert spec.origin is not None, f"{name} is no package with a file"
    return Path(spec.origin).parent


def end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


LAUNCHER = WarmLauncher(PRELOADED, environment_of_vllm)
"""That of this run's vLLM servers."""


class WarmServer(Server):
    """A server of `python -m module …` that is forked; any other command is started as it stands."""

    launcher = LAUNCHER

    def _launch(self, log: BinaryIO) -> StartedProcess:
        network, command = "", self.command
        if command[:3] == IN_NETWORK:
            network, command = command[3], command[4:]
        if command[:2] != [sys.executable, "-m"]:
            return super()._launch(log)
        return self.launcher.start(self, network, command[2], command[3:], log)
