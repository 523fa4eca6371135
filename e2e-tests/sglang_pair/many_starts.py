"""Starts many pairs of SGLang servers at the same moment, all forked from one process, and waits until all are up.

    examples/setup/environment run sglang --wheel WHEEL -- e2e-tests/sglang_pair/many_starts.py [--pairs 20]

What forks share (random numbers, ports, file names) shows when two of them want the same. The last line is the memory
of all of them, with what several processes share counted once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
)

from make_model import cached_model
from prompts import cache_home
from server_process import Server, ServerFailed, free_port
from sglang_bed import Ground, Kind
from warm_sglang import LAUNCHER

UP_LIMIT_SECONDS = 1800.0
LOOK_SECONDS = 1.0


def wait_until_up(servers: list[Server]) -> None:
    """Raises `ServerFailed` as soon as one ends, or when the limit is over."""
    deadline = time.monotonic() + UP_LIMIT_SECONDS
    waiting = list(servers)
    while waiting:
        for server in waiting:
            if not server.alive():
                raise ServerFailed(f"{server.name} ended before it was up; the end of its log:\n{server.log_tail()}")
        waiting = [server for server in waiting if not server.healthy()]
        if time.monotonic() > deadline:
            raise ServerFailed(f"{len(waiting)} of {len(servers)} servers are not up after {UP_LIMIT_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


def memory_mib(root: int) -> float:
    """The proportional set sizes of a process and of all below it, added up."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, left = 0, [root]
    while left:
        process = left.pop()
        left += children.get(process, [])
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
            found += int(rollup.partition("\nPss:")[2].split()[0])
    return found / 1024


def main() -> int:
    takes = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    takes.add_argument("--pairs", type=int, default=20)
    pairs = takes.parse_args().pairs
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.callback(LAUNCHER.stop)
        ground = Ground(cached_model(cache_home()), folder)
        servers = [
            ground.side(role, Kind(), free_port(), name=f"{role}-{number}").server
            for number in range(pairs)
            for role in ("prefill", "decode")
        ]
        begun = time.monotonic()
        for server in servers:
            stack.callback(server.stop)
            server.start()
        wait_until_up(servers)
        print(f"{len(servers)} of {len(servers)} servers are up after {time.monotonic() - begun:.0f} s")
        print(f"{memory_mib(LAUNCHER.pid):.0f} MiB, the process that they are forked from included")
    return 0


if __name__ == "__main__":
    sys.exit(main())
