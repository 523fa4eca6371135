"""What a server's processes and threads cost, read from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ThreadCost:
    thread_id: int
    name: str
    cpu_seconds: float
    wake_up_count: int
    """How often it has gone to sleep of its own accord, so how often it was woken."""


def descendants(pid: int) -> Iterator[int]:
    """`pid` and all processes beneath it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text(encoding="ascii").split():
            yield from descendants(int(child))


def kill(pid: int) -> None:
    """The process and its whole group end at once, as in a power cut."""
    os.killpg(pid, signal.SIGKILL)


def kill_alone(pid: int) -> None:
    """One process ends at once, as when memory runs out."""
    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process and its whole group stand still meanwhile, unless they are killed."""
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


def maps_a_jvm(pid: int) -> bool:
    return "libjvm.so" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")


def mapped_kv_memories(pid: int) -> set[str]:
    """The inodes of the shareable KV memories that a process has mapped, its own and others'."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return {line.split()[4] for line in maps.splitlines() if "/memfd:kv-messenger-kv " in line}


def threads(pid: int) -> list[ThreadCost]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, tail = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            wake_up_count = status_number(task, "voluntary_ctxt_switches")
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
        fields = tail.split()
        ticks = int(fields[11]) + int(fields[12])  # utime and stime, counted behind the name
        found.append(ThreadCost(int(task.name), head.partition("(")[2], ticks / TICKS_A_SECOND, wake_up_count))
    return found


def resident_mib(pid: int) -> float:
    return status_number(Path(f"/proc/{pid}"), "VmRSS") / 1024


def status_number(folder: Path, name: str) -> int:
    """A figure of a process's or a thread's `status`, in the unit that stands there."""
    for line in (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"{folder}/status has no {name}")
