"""Compares kvperf with NIXL and Mooncake: the same pages between two processes of this host, one JSON line per row.

    make race [ARGS="--turns 40 --output FILE --only 'shm paged 65536'"]

The contenders of a row are started together and move rounds alternately, so that all see the same state of the machine;
each begins equally often. The results are medians of rounds, and of the ratios of corresponding rounds. A round of ours
ends when the target has counted every page; NIXL's target counts a notification per batch; Mooncake's round ends when
the writer's calls return (its target is not notified). Use a quiet machine; the load is part of the output.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
KVPERF = HERE.parents[1] / "connector-java" / "benchmarks" / "kvperf"
OURS = "kv_messenger"
QUIET_LOAD = 0.7
READY_LIMIT_SECONDS = 180.0
KIB, MIB = 1024, 1 << 20


@dataclass(frozen=True)
class Row:
    """The data of a round, and a transport that the contenders have in common."""

    transport: str
    op: str
    page_bytes: int
    page_count: int
    batch_pages: int
    pool_bytes: int = 512 * MIB

    def __str__(self) -> str:
        return f"{self.transport} {self.op} {self.page_bytes}"

    def arguments(self) -> list[str]:
        fields = (
            "transport",
            "op",
            "page_bytes",
            "page_count",
            "batch_pages",
            "pool_bytes",
        )
        return [part for name in fields for part in (f"--{name.replace('_', '-')}", str(getattr(self, name)))]

    def contenders(self) -> list[str]:
        # Mooncake's wheel without CUDA has only tcp, and no notification by which a target could answer.
        return [OURS, "nixl", *(["mooncake"] if self.op == "paged" else [])]


def rows() -> Iterator[Row]:
    for transport in ("shm", "tcp"):
        for page_bytes in (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB):
            yield Row(
                transport,
                "paged",
                page_bytes,
                128 * MIB // page_bytes,
                max(1, MIB // page_bytes),
            )
        # DeepSeek-R1: 61 layers of 32 pages, latent KV of 128 KiB and the indexer's 16 KiB each.
        yield Row(transport, "paged", 144 * KIB, 61 * 32, 32, 1024 * MIB)
        yield Row(transport, "pingpong", 4 * KIB, 1000, 1)


class Turning:
    """Two processes that move a round on request."""

    def __init__(self, name: str, command: list[str], log: int | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)

    def await_ready(self) -> None:
        while (line := self._line()) != "ready":
            print(f"{self.name}: {line}", file=sys.stderr)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"race: {self.name} has ended with {self._process.wait(10)}")
        return line.strip()

    def round(self) -> tuple[int, int]:
        """Moves one round; returns (duration, CPU time) in ns."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        took, cpu = self._line().split()
        return int(took), int(cpu)

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Contender(Turning):
    """One library."""

    def __init__(self, name: str, row: Row) -> None:
        transport = {"mooncake": "tcp"}.get(name, row.transport)
        command = [str(KVPERF), "--turns"] if name == OURS else [sys.executable, str(HERE / "rival.py"), name]
        arguments = row.arguments()
        arguments[arguments.index("--transport") + 1] = transport
        log = None if name == OURS else subprocess.DEVNULL  # the others log their work
        super().__init__(name, [*command, *arguments], log)


def run(row: Row, turns: int) -> dict[str, object]:
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        contenders = []
        for name in row.contenders():  # one by one: a start would disturb another one
            contender = Contender(name, row)
            stack.callback(contender.end)
            contender.await_ready()
            contenders.append(contender)
        rounds: dict[str, list[tuple[int, int]]] = {contender.name: [] for contender in contenders}
        for turn in range(turns):
            first = turn % len(contenders)
            for contender in [*contenders[first:], *contenders[:first]]:
                rounds[contender.name].append(contender.round())
    return {
        "row": str(row),
        "pages": row.page_count,
        "batchPages": row.batch_pages,
        "turns": turns,
        "contenders": {name: figures(row, taken, rounds[OURS]) for name, taken in rounds.items()},
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
    }


def figures(row: Row, taken: list[tuple[int, int]], ours: list[tuple[int, int]]) -> dict[str, float]:
    median_ns = statistics.median(ns for ns, _ in taken)
    ratio = round(
        statistics.median(their[0] / our[0] for their, our in zip(taken, ours, strict=True)),
        3,
    )
    if row.op == "pingpong":
        return {
            "halfWayUs": round(median_ns / row.page_count / 2000, 2),
            "timeOverOurs": ratio,
        }
    gigabytes = row.page_count * row.page_bytes / 1e9
    cpu_seconds = statistics.median(cpu for _, cpu in taken) / 1e9
    return {
        "gbPerSecond": round(gigabytes / median_ns * 1e9, 3),
        "cpuSecondsPerGb": round(cpu_seconds / gigabytes, 3),
        "timeOverOurs": ratio,
    }


def wait_quiet(limit_seconds: float) -> None:
    until = time.monotonic() + limit_seconds
    while os.getloadavg()[0] > QUIET_LOAD and time.monotonic() < until:
        time.sleep(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument(
        "--only",
        action="append",
        help="a row, such as 'shm paged 65536'; again for more",
    )
    parser.add_argument(
        "--wait-seconds",
        type=float,
        default=0.0,
        help="for a quiet machine, before each row",
    )
    parser.add_argument("--output", type=Path, help="the lines are appended to it too")
    given = parser.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("nixl", "mooncake-transfer-engine-non-cuda")}
    for row in rows():
        if given.only and str(row) not in given.only:
            continue
        wait_quiet(given.wait_seconds)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = json.dumps({"at": now, **run(row, given.turns), "versions": versions})
        print(line, flush=True)
        if given.output:
            with given.output.open("a", encoding="utf-8") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
