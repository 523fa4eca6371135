"""Two vLLMs on a CUDA that computes nothing, each in a process of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import pytest
from fabric import environment_of_fabric
from gpu_check.vllm_checks import VllmProcess
from gpu_check.vllm_on_torch.plan import DECODER, PREFILLER, VllmPlan
from server_process import Server
from torch_engine.pair import Pair
from warm_starts import ForkedProcess, WarmLauncher

FIND = Path(__file__).resolve().parents[2] / "examples" / "setup" / "find-uncomputed-cuda"
FOLDER = Path(__file__).resolve().parent.parent
PRELOADED = ("setproctitle", "uncomputed.preloaded")

DEVICES = 2
RDMA = "libibverbs.so.1"
NUMBERS = itertools.count()
POLL_SECONDS = 1.0
LIMIT_SECONDS = 3600.0
"""For whatever a busy machine makes slow."""


def environment(stand_ins: Path, *, rdma: bool = True) -> dict[str, str]:
    """Of a process that has the stand-ins in place of CUDA, and of RDMA devices if there are some and it wants them."""
    preloaded = ["libcuda.so.1", "libcudart.so.13", "libuncomputedblas.so", "libnccl.so.2"]
    if rdma and has_rdma_devices(stand_ins):
        preloaded.append(RDMA)
    return {
        "LD_PRELOAD": ":".join(str(stand_ins / name) for name in preloaded),
        "UNCOMPUTED_ROWS": str(stand_ins / "librows.so"),
        "TRITON_LIBCUDA_PATH": str(stand_ins),
        "STAND_IN_DEVICES": str(DEVICES),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # it multicasts through memory of the driver's, which is not here
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start threads when it is imported: what is forked must have one
    }


def stand_ins() -> Path:
    """Their folder; skips the test that asks where they cannot be made."""
    found = subprocess.run([FIND, sys.executable], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return Path(found.stdout.strip())


def has_rdma_devices(stand_ins: Path) -> bool:
    """False where the headers of libibverbs could not be had."""
    return (stand_ins / RDMA).exists()


@dataclass
class Engines:
    """Starts engines of one release of vLLM. `sources`: the folder with another's Python than this environment has.

    `with_fabric`: they can load libfabric, whose own libibverbs is then in the place of the stand-in's RDMA devices.
    """

    stand_ins: Path
    sources: Path | None = None
    with_fabric: bool = False
    _launcher: WarmLauncher = field(init=False)

    def __post_init__(self) -> None:
        self._launcher = WarmLauncher(PRELOADED, self.environment)

    def environment(self) -> dict[str, str]:
        sources = [] if self.sources is None else [str(self.sources)]
        path = os.pathsep.join([*sources, str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
        libraries = environment_of_fabric() if self.with_fabric else {}
        return {**environment(self.stand_ins, rdma=not self.with_fabric), **libraries, "PYTHONPATH": path}

    def start(self, log: Path, arguments: list[str], driver: Mapping[str, str]) -> ForkedProcess:
        wanted = Wanted(log, {**os.environ, **self.environment(), **driver})
        with open(log, "ab") as lines:
            return self._launcher.start(cast(Any, wanted), "", "uncomputed", arguments, lines)

    def serve(self, server: Server, log: BinaryIO) -> ForkedProcess:
        """Starts a server of `python -m …`, whose environment is this one's with more."""
        _, _, module, *arguments = server.command
        return self._launcher.start(server, "", module, arguments, log)

    def stop(self) -> None:
        self._launcher.stop()


@dataclass(frozen=True)
class Wanted:
    """What the launcher asks of a server."""

    log_path: Path
    environment: Mapping[str, str]


class _Forked:
    """An engine's process, with what is asked of a `subprocess.Popen`."""

    def __init__(self, process: ForkedProcess, stdin: IO[str], stdout: IO[str]) -> None:
        self._process, self.stdin, self.stdout = process, stdin, stdout

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


class Uncomputed(VllmProcess):
    start_limit_seconds = end_limit_seconds = answer_limit_seconds = LIMIT_SECONDS

    def __init__(self, plan: VllmPlan, log: Path, engines: Engines, driver: Mapping[str, str]) -> None:
        self._engines = engines
        self._driver = driver
        super().__init__(plan, log)

    def sleep(self, level: int) -> int:
        """How many bytes the device has free then."""
        return self._asked("slept", {"do": "sleep", "level": level})

    def wake(self) -> int:
        return self._asked("woken", {"do": "wake"})

    def free_bytes(self) -> int:
        return self._asked("free", {"do": "free"})

    def forget(self) -> None:
        """Empties the prefix cache. Answers nothing: what is asked afterwards comes behind it."""
        self._say({"do": "forget"})

    def _asked(self, name: str, command: dict[str, Any]) -> int:
        answer = self._await(name)
        self._say(command)
        return int(answer.result(self.answer_limit_seconds)[name])

    def _launched(self) -> subprocess.Popen[str]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0kv-messenger-uncomputed-{os.getpid()}-{next(NUMBERS)}")
            listener.listen()
            name = listener.getsockname().decode()[1:]
            process = self._engines.start(self.log, [self.plan.as_json(), name], self._driver)
            commands, answers = (_accepted(listener, process, mode) for mode in "wr")
        return cast("subprocess.Popen[str]", _Forked(process, commands, answers))


def _accepted(listener: socket.socket, process: ForkedProcess, mode: Any) -> IO[str]:
    """The next connection as a file."""
    listener.settimeout(POLL_SECONDS)
    while process.poll() is None:
        with contextlib.suppress(TimeoutError), listener.accept()[0] as connection:
            connection.settimeout(None)
            return cast(IO[str], connection.makefile(mode))
    raise AssertionError(f"an engine ended with status {process.returncode} before it took commands")


@contextmanager
def started(
    plan: VllmPlan,
    logs: Path,
    engines: Engines,
    prefiller: VllmPlan | None = None,
    driver: Mapping[str, str] | tuple[Mapping[str, str], Mapping[str, str]] | None = None,
) -> Iterator[Pair]:
    """A pair by one plan, whose name and role are filled in, or its prefiller by another.

    `driver`: variables of the stand-in for the driver, of both or of the prefiller and of the decoder.
    """
    variables = driver if isinstance(driver, tuple) else (driver or {}, driver or {})
    with ExitStack() as entered:
        named = (("prefiller", PREFILLER, prefiller or plan), ("decoder", DECODER, plan))
        sides = [
            entered.enter_context(
                Uncomputed(replace(each, name=f"{plan.name}-{side}", role=role), logs / f"{side}.log", engines, own)
            )
            for (side, role, each), own in zip(named, variables, strict=True)
        ]
        for side in sides:
            side.ready()
        yield Pair(sides[0], sides[1])
