"""Hand-overs beside bulk writes of another process, on one link of 1 Gb/s between two network namespaces; needs root.

    make shared-link [ARGS="--rounds 200 --mib 1 8"]

A hand-over is a round of kvperf: until its target has counted all pages. Bulk is kvperf too, writes of 4 MiB without
end, once urgent as all writes were before there were classes, and once bulk. Each line is from one run; ratios are to
the idle link just before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("paths", "race"))

from hand_over import percentile
from multi_path import MIB, Bed, Pair

LINK_MBIT: Final = 1000
BULK_WRITE_BYTES: Final = 4 * MIB
BULK_ROUND_BYTES: Final = 64 * MIB
LEARN_SECONDS: Final = 2.0
"""For which bulk is alone before hand-overs begin: it then holds what it can of the link."""
PAUSE_SECONDS: Final = (0.01, 0.05)
CLASSES: Final = ("urgent", "bulk")


class Bulk:
    """A pair that writes without end, round after round, until it is ended."""

    def __init__(self, bed: Bed, traffic: str) -> None:
        more = ("--threading", "own", "--traffic", traffic, "--op", "single")
        self.pair = Pair(bed, [0], BULK_ROUND_BYTES, *more, page_bytes=BULK_WRITE_BYTES)
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
        while not self._ended.is_set():
            self.pair.seconds(1)


class HandOvers:
    """Rounds with pauses between them, as requests come."""

    def __init__(self, bed: Bed, mib: float, rounds: int) -> None:
        self._bed = bed
        self.mib = mib
        self._rounds = rounds
        self._random = random.Random(1)
        self.pair = Pair(bed, [0], int(mib * MIB), "--threading", "own")
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


def measure(bed: Bed, mib: float, rounds: int, turns: int) -> None:
    hand_overs = HandOvers(bed, mib, rounds)
    bulks = {traffic: Bulk(bed, traffic) for traffic in CLASSES}
    try:
        bed.limit(0, LINK_MBIT)
        for turn in range(turns):
            idle = hand_overs.measured()
            report(turn, mib, "nothing", idle, idle)
            for traffic, bulk in bulks.items():
                with bulk.flowing():
                    report(turn, mib, traffic, hand_overs.measured(), idle)
    finally:
        bed.unlimit(0)
        for pair in (hand_overs.pair, *(bulk.pair for bulk in bulks.values())):
            pair.close()


def report(turn: int, mib: float, beside: str, seen: dict[str, float], idle: dict[str, float]) -> None:
    ratios = {f"{name}Ratio": round(seen[f"{name}Millis"] / idle[f"{name}Millis"], 2) for name in ("p50", "p99")}
    line = {"turn": turn, "mib": mib, "beside": beside} | seen | ratios | {"load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--mib", type=float, nargs="+", default=[8.0])
    asked = parser.parse_args()
    bed = Bed(1)
    try:
        for mib in asked.mib:
            measure(bed, mib, asked.rounds, asked.turns)
    finally:
        bed.close()


if __name__ == "__main__":
    main()
