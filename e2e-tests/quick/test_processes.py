"""What is read of processes of /proc that come and go while they are looked at: a server's helpers do at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import descendants, entries, is_over, mapped_kv_memories, maps_a_jvm, read
from server_process import wait_until

LIMIT_SECONDS = 600.0
CHILDREN = 3
LOOKS: dict[str, Callable[[int], object]] = {
    "a JVM": maps_a_jvm,
    "KV memories": mapped_kv_memories,
    "its command": lambda pid: read(Path(f"/proc/{pid}/cmdline")),
    "its descriptors": lambda pid: entries(Path(f"/proc/{pid}/fd")),
}


@pytest.fixture
def parent() -> Iterator[int]:
    """A process with children, which it reaps as soon as they end."""
    with subprocess.Popen(["sh", "-c", "sleep 600 & " * CHILDREN + "wait"], start_new_session=True) as shell:
        try:
            wait_until(lambda: commands(shell.pid) == ["sh", *CHILDREN * ["sleep"]], LIMIT_SECONDS, "all children")
            yield shell.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)


def commands(pid: int) -> list[str]:
    """Those of a process and all beneath it; a child's is its parent's until it runs its own."""
    return [read(Path(f"/proc/{each}/cmdline")).split("\0")[0] for each in descendants(pid)]


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), LIMIT_SECONDS, f"{pid} is reaped")


@pytest.mark.parametrize("ended", range(1, 1 + CHILDREN))
@pytest.mark.parametrize("look", LOOKS)
def test_one_that_ends_between_two_looks_is_one_with_nothing(parent: int, look: str, ended: int) -> None:
    seen = []
    for place, pid in enumerate(descendants(parent)):
        if place == ended:
            end(pid)
        seen.append((pid, LOOKS[look](pid)))
    assert len({pid for pid, _ in seen}) == 1 + CHILDREN
    assert not seen[ended][1]
    assert is_over(seen[ended][0])
    assert len(list(descendants(parent))) == CHILDREN


def test_one_that_lives_is_seen(parent: int) -> None:
    assert all(entries(Path(f"/proc/{pid}/fd")) for pid in descendants(parent))
    assert not any(is_over(pid) for pid in descendants(parent))
