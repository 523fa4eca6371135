"""The CPU time of this machine that other processes than those of a measurement used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from processes import descendants, read

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
FOREIGN_CORES_MAX = 0.15
"""Rounds with more are marked as disturbed."""
IDLE = (3, 4)
"""The fields idle and iowait in the first line of /proc/stat; time taken by a hypervisor counts as foreign."""
GUESTS = 8
"""The first field whose time is included in user time."""


@dataclass(frozen=True)
class Usage:
    """Core-seconds since the start of the machine, and of the processes."""

    at_seconds: float
    busy_seconds: float
    ours_seconds: float


def busy_ticks(stat: str) -> int:
    """The ticks in the text of /proc/stat in which cores were not idle."""
    fields = [int(field) for field in stat.splitlines()[0].split()[1:]][:GUESTS]
    return sum(ticks for place, ticks in enumerate(fields) if place not in IDLE)


def process_ticks(stat: str) -> int:
    """The ticks in the text of a process's stat: its own and those of children that it has waited for."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(fields[place]) for place in (11, 12, 13, 14))


def now() -> Usage:
    ours = 0
    for pid in descendants(os.getpid()):
        if stat := read(Path(f"/proc/{pid}/stat")):
            ours += process_ticks(stat)
    busy = busy_ticks(Path("/proc/stat").read_text(encoding="ascii"))
    return Usage(time.monotonic(), busy / TICKS_A_SECOND, ours / TICKS_A_SECOND)


def foreign_cores(before: Usage, after: Usage) -> float:
    """The average number of cores that other processes used in between."""
    busy = after.busy_seconds - before.busy_seconds
    ours = after.ours_seconds - before.ours_seconds
    return max(0.0, busy - ours) / max(after.at_seconds - before.at_seconds, 1 / TICKS_A_SECOND)


def wait_quiet(
    limit_seconds: float, read: Callable[[], Usage] = now, pause: Callable[[float], None] = time.sleep
) -> bool:
    """Waits for a second in which other processes are nearly idle; False if there is none within the limit."""
    before = read()
    until = before.at_seconds + limit_seconds
    while True:
        pause(1.0)
        after = read()
        if foreign_cores(before, after) <= FOREIGN_CORES_MAX:
            return True
        if after.at_seconds >= until:
            return False
        before = after
