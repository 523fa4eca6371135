"""Hand-overs beside bulk writes on one link of 1 Gb/s between two network namespaces; needs root.

    make shared-link [ARGS="--rounds 200 --mib 1 8"]

A hand-over is a round of kvperf: until its target has counted all pages. Bulk is kvperf too, writes of 4 MiB without
end: of another process, once urgent as all writes were before there were classes and once bulk, and then of the
process that hands over. At last each of the two processes is stopped and killed in the middle of its writes, and the
other one's share of the link is watched. Each line is from one run; ratios are to the idle link just before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("paths", "race"))

from hand_over import percentile
from multi_path import MIB, Bed, Pair, arguments

LINK_MBIT: Final = 1000
BULK_WRITE_BYTES: Final = 4 * MIB
BULK_ROUND_BYTES: Final = 64 * MIB
LEARN_SECONDS: Final = 2.0
"""For which bulk is alone before hand-overs begin: it then holds what it can of the link."""
PAUSE_SECONDS: Final = (0.01, 0.05)
CLASSES: Final = ("urgent", "bulk")
ENDS: Final = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
WATCH_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 0.1
"""Interval in which the link's bytes are counted after an end."""


def bulk_arguments(traffic: str) -> tuple[str, ...]:
    return ("--threading", "own", "--traffic", traffic, "--op", "single")


class Bulk:
    """A pair that writes without end, round after round, until it is ended."""

    def __init__(self, bed: Bed, traffic: str) -> None:
        self.pair = Pair(bed, [0], BULK_ROUND_BYTES, *bulk_arguments(traffic), page_bytes=BULK_WRITE_BYTES)
        self._ended = threading.Event()

    @contextmanager
    def flowing(self) -> Iterator[None]:
        self._ended.clear()
        thread = threading.Thread(target=self._flow)
        thread.start()
        try:
            time.sleep(LEARN_SECONDS)
            yield
        finally:
            self._ended.set()
            thread.join()

    def _flow(self) -> None:
        """Ends at the latest with its process: then a round has no answer."""
        while not self._ended.is_set():
            self.pair.seconds(1)


class HandOvers:
    """Rounds with pauses between them, as requests come."""

    def __init__(self, bed: Bed, mib: float, rounds: int, *more: str) -> None:
        self._bed = bed
        self.mib = mib
        self._rounds = rounds
        self._random = random.Random(1)
        self.pair = Pair(bed, [0], int(mib * MIB), "--threading", "own", *more)
        self.pair.seconds(3)

    def measured(self) -> dict[str, float]:
        sent, began = self._bed.sent_bytes(0), time.monotonic()
        took = []
        for _ in range(self._rounds):
            time.sleep(self._random.uniform(*PAUSE_SECONDS))
            took += [seconds * 1e3 for seconds in self.pair.seconds(1)]
        seconds = time.monotonic() - began
        whole = (self._bed.sent_bytes(0) - sent) * 8e-6 / seconds
        own = self._rounds * self.mib * MIB * 8e-6 / seconds
        return {
            "p50Millis": round(percentile(took, 0.5), 1),
            "p99Millis": round(percentile(took, 0.99), 1),
            "linkMbit": round(whole),
            "handOverMbit": round(own),
        }


@contextmanager
def bulk_within(bed: Bed, mib: float, rounds: int) -> Iterator[HandOvers]:
    """Hand-overs of a process that can write bulk too."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        beside = arguments(bed, [0], BULK_ROUND_BYTES, *bulk_arguments("bulk"), page_bytes=BULK_WRITE_BYTES)
        file.write("\n".join(beside))
        file.flush()
        yield HandOvers(bed, mib, rounds, "--beside", file.name)


@contextmanager
def limited(bed: Bed, *pairs: Pair) -> Iterator[None]:
    bed.limit(0, LINK_MBIT)
    try:
        yield
    finally:
        bed.unlimit(0)
        for pair in pairs:
            pair.close()


def measure(bed: Bed, mib: float, rounds: int, turns: int) -> None:
    hand_overs = HandOvers(bed, mib, rounds)
    bulks = {traffic: Bulk(bed, traffic) for traffic in CLASSES}
    with limited(bed, hand_overs.pair, *(bulk.pair for bulk in bulks.values())):
        for turn in range(turns):
            idle = hand_overs.measured()
            report(turn, mib, "nothing", idle, idle)
            for traffic, bulk in bulks.items():
                with bulk.flowing():
                    report(turn, mib, traffic, hand_overs.measured(), idle)


def measure_within(bed: Bed, mib: float, rounds: int, turns: int) -> None:
    with bulk_within(bed, mib, rounds) as hand_overs, limited(bed, hand_overs.pair):
        for turn in range(turns):
            idle = hand_overs.measured()
            report(turn, mib, "nothing", idle, idle)
            hand_overs.pair.send("+")
            time.sleep(LEARN_SECONDS)
            report(turn, mib, "bulk of the same process", hand_overs.measured(), idle)
            hand_overs.pair.send("-")
            time.sleep(LEARN_SECONDS)  # for the round that has begun


def report(turn: int, mib: float, beside: str, seen: dict[str, float], idle: dict[str, float]) -> None:
    ratios = {f"{name}Ratio": round(seen[f"{name}Millis"] / idle[f"{name}Millis"], 2) for name in ("p50", "p99")}
    line = {"turn": turn, "mib": mib, "beside": beside} | seen | ratios | {"load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)


def measure_ends(bed: Bed) -> None:
    """The urgent process and the bulk one, each stopped and killed while both write without end."""
    for name, how in ENDS.items():
        for ended in CLASSES:
            with ExitStack() as flows:
                bulks = {traffic: Bulk(bed, traffic) for traffic in CLASSES}
                flows.enter_context(limited(bed, *(bulk.pair for bulk in bulks.values())))
                for bulk in bulks.values():
                    flows.enter_context(bulk.flowing())
                before = rates(bed)
                bulks[ended].pair.signal(how)
                flows.callback(bulks[ended].pair.signal, signal.SIGKILL)
                line = {"ended": ended, "how": name, "beforeMbit": before[-1], "afterMbit": rates(bed)}
                print(json.dumps(line | {"load": round(os.getloadavg()[0], 1)}), flush=True)


def rates(bed: Bed) -> list[int]:
    """What the link carries, in Mb/s, in each interval of the time watched."""
    seen = []
    sent, last = bed.sent_bytes(0), time.monotonic()
    for _ in range(round(WATCH_SECONDS / WATCHED_SECONDS)):
        time.sleep(WATCHED_SECONDS)
        now_sent, now = bed.sent_bytes(0), time.monotonic()
        seen.append(round((now_sent - sent) * 8e-6 / (now - last)))
        sent, last = now_sent, now
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--mib", type=float, nargs="+", default=[8.0])
    parser.add_argument("--congestion", default="", help="congestion control (the kernel's default)")
    asked = parser.parse_args()
    bed = Bed(1, asked.congestion)
    try:
        for mib in asked.mib:
            measure(bed, mib, asked.rounds, asked.turns)
            measure_within(bed, mib, asked.rounds, asked.turns)
        measure_ends(bed)
    finally:
        bed.close()


if __name__ == "__main__":
    main()
