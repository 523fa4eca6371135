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


GONE = (FileNotFoundError, ProcessLookupError)
"""What reading of a process or thread raises that has ended meanwhile: before its file is opened, or behind that."""


def descendants(pid: int) -> Iterator[int]:
    """`pid` and all processes beneath it. Any of them may end meanwhile, and is a process without children then."""
    yield pid
    for task in entries(Path(f"/proc/{pid}/task")):
        for child in read(task / "children").split():
            yield from descendants(int(child))


def entries(folder: Path) -> list[Path]:
    """What a folder of /proc has of a process; nothing of one that has ended."""
    with contextlib.suppress(*GONE):
        return list(folder.iterdir())
    return []


def read(file: Path) -> str:
    """What a file of /proc says of a process or thread; "" of one that has ended."""
    with contextlib.suppress(*GONE):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def is_over(pid: int) -> bool:
    """Whether a process has ended; its parent may not have asked for its status yet."""
    return read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in ([], ["Z"])


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
    return "libjvm.so" in read(Path(f"/proc/{pid}/maps"))


def mapped_kv_memories(pid: int) -> set[str]:
    """The inodes of the shareable KV memories that a process has mapped, its own and others'."""
    maps = read(Path(f"/proc/{pid}/maps"))
    return {line.split()[4] for line in maps.splitlines() if "/memfd:kv-messenger-kv " in line}


def threads(pid: int) -> list[ThreadCost]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, tail = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
            wake_up_count = status_number(task, "voluntary_ctxt_switches")
        except GONE:  # the thread ended meanwhile
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
