"""Hand-overs beside bulk writes on one link of 1 Gb/s between two network namespaces; needs root.

    make shared-link [ARGS="--rounds 200 --mib 1 8"]

A hand-over is a round of kvperf: until its target has counted all pages. Bulk is kvperf too, writes of 4 MiB without
end: of another process, once urgent as all writes were before there were classes and once bulk, and then of the
process that hands over. Then both are NIXL's and Mooncake's, which have no classes. At last each of our two processes
is stopped and killed in the middle of its writes, and the other one's share of the link is watched. Each line is from
one run; ratios are to the idle link just before.
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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("paths", "race"))

from hand_over import percentile
from multi_path import MIB, PAGE_BYTES, Bed, Pair, Rounds, arguments

RIVAL: Final = Path(__file__).resolve().parents[1] / "race/rival.py"
LINK_MBIT: Final = 1000
BULK_WRITE_BYTES: Final = 4 * MIB
BULK_ROUND_BYTES: Final = 64 * MIB
LEARN_SECONDS: Final = 2.0
"""For which bulk is alone before hand-overs begin: it then holds what it can of the link."""
PAUSE_SECONDS: Final = (0.01, 0.05)
CLASSES: Final = ("urgent", "bulk")
RIVALS: Final = ("nixl", "mooncake")
ENDS: Final = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
WATCH_SECONDS: Final = 2.0
WATCHED_SECONDS: Final = 0.1
"""Interval in which the link's bytes are counted after an end."""


def bulk_arguments(traffic: str) -> tuple[str, ...]:
    return ("--threading", "own", "--traffic", traffic, "--op", "single")


def bulk_pair(bed: Bed, traffic: str) -> Pair:
    return Pair(bed, [0], BULK_ROUND_BYTES, *bulk_arguments(traffic), page_bytes=BULK_WRITE_BYTES)


class RivalPair(Rounds):
    """Another library's, with the same pages in flight."""

    def __init__(self, bed: Bed, library: str, round_bytes: int, page_bytes: int = PAGE_BYTES) -> None:
        pages = round_bytes // page_bytes
        super().__init__(
            bed,
            *(sys.executable, str(RIVAL), library, "--transport", "tcp", "--device", "nic0"),
            *("--page-bytes", str(page_bytes), "--page-count", str(pages)),
            *("--batch-pages", str(min(pages, max(1, MIB // page_bytes))), "--pool-bytes", str(2 * round_bytes)),
            *("--host", bed.near[0], "--target-host", bed.far[0]),
            *("--target-prefix", " ".join(bed.at(bed.hosts[1]))),
        )


class Bulk:
    """A pair that writes without end, round after round, until it is ended."""

    def __init__(self, pair: Rounds) -> None:
        self.pair = pair
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

    def __init__(self, bed: Bed, pair: Rounds, mib: float, rounds: int) -> None:
        self._bed = bed
        self.mib = mib
        self._rounds = rounds
        self._random = random.Random(1)
        self.pair = pair
        self.pair.seconds(3)

    @classmethod
    def ours(cls, bed: Bed, mib: float, rounds: int, *more: str) -> HandOvers:
        return cls(bed, Pair(bed, [0], int(mib * MIB), "--threading", "own", *more), mib, rounds)

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
        yield HandOvers.ours(bed, mib, rounds, "--beside", file.name)


@contextmanager
def limited(bed: Bed, *pairs: Rounds) -> Iterator[None]:
    bed.limit(0, LINK_MBIT)
    try:
        yield
    finally:
        bed.unlimit(0)
        for pair in pairs:
            pair.close()


def measure(bed: Bed, hand_overs: HandOvers, bulks: Mapping[str, Bulk], turns: int) -> None:
    with limited(bed, hand_overs.pair, *(bulk.pair for bulk in bulks.values())):
        for turn in range(turns):
            idle = hand_overs.measured()
            report(turn, hand_overs.mib, "nothing", idle, idle)
            for name, bulk in bulks.items():
                with bulk.flowing():
                    report(turn, hand_overs.mib, name, hand_overs.measured(), idle)


def measure_ours(bed: Bed, mib: float, rounds: int, turns: int) -> None:
    bulks = {traffic: Bulk(bulk_pair(bed, traffic)) for traffic in CLASSES}
    measure(bed, HandOvers.ours(bed, mib, rounds), bulks, turns)


def measure_rival(bed: Bed, library: str, mib: float, rounds: int, turns: int) -> None:
    hand_overs = HandOvers(bed, RivalPair(bed, library, int(mib * MIB)), mib, rounds)
    bulk = Bulk(RivalPair(bed, library, BULK_ROUND_BYTES, BULK_WRITE_BYTES))
    measure(bed, hand_overs, {f"{library} beside {library}": bulk}, turns)


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
                bulks = {traffic: Bulk(bulk_pair(bed, traffic)) for traffic in CLASSES}
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
    parser.add_argument("--rivals", nargs="*", choices=RIVALS, default=RIVALS)
    parser.add_argument("--congestion", default="", help="congestion control (the kernel's default)")
    asked = parser.parse_args()
    bed = Bed(1, asked.congestion)
    try:
        for mib in asked.mib:
            measure_ours(bed, mib, asked.rounds, asked.turns)
            measure_within(bed, mib, asked.rounds, asked.turns)
            for library in asked.rivals:
                measure_rival(bed, library, mib, asked.rounds, asked.turns)
        measure_ends(bed)
    finally:
        bed.close()


if __name__ == "__main__":
    main()
