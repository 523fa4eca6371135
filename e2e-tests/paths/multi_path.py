"""Several network paths between two hosts, which are network namespaces joined by links of limited rates; needs root.

    make multi-path [ARGS="--congestion NAME CASE ..."]      all cases by default, see CASES

Prints one JSON line for each case. Speeds are compared with what each link does alone in the same run. Congestion
control is the kernel's default unless it is named. MULTI_PATH_KVPERF has more options for kvperf.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
PAGE_BYTES = 64 << 10
FAST_MBIT, SLOW_MBIT = 1000, 250
NETWORK = "10.212"


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"multi-path: {' '.join(map(str, command))}: {done.stderr.strip()}")


class Bed:
    """Two hosts, and links between them that are called by number. The rates limit what the near one sends."""

    def __init__(self, link_count: int, congestion: str = "") -> None:
        self.hosts = (f"kvm-near-{os.getpid()}", f"kvm-far-{os.getpid()}")
        self.near = [f"{NETWORK}.{i}.1" for i in range(link_count)]
        self.far = [f"{NETWORK}.{i}.2" for i in range(link_count)]
        try:
            for host in self.hosts:
                run("ip", "netns", "add", host)
                run("ip", "-n", host, "link", "set", "lo", "up")
            for link in range(link_count):
                self._join(link)
                if congestion:
                    route = (f"{NETWORK}.{link}.0/30", "dev", f"nic{link}", "src", self.near[link])
                    run("ip", "-n", self.hosts[0], "route", "replace", *route, "congctl", congestion)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def at(host: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", host)

    def _join(self, link: int) -> None:
        near, far = self.hosts
        name = f"nic{link}"
        run(*("ip", "-n", near, "link", "add", name, "type", "veth", "peer", "name", name, "netns", far))
        for host, address in ((near, self.near[link]), (far, self.far[link])):
            run("ip", "-n", host, "addr", "add", f"{address}/30", "dev", name)
            run("ip", "-n", host, "link", "set", name, "up")

    def limit(self, link: int, mbit: int) -> None:
        self._tc("replace", link, mbit)

    def change(self, link: int, mbit: int) -> None:
        """What waits in the link's queue stays there."""
        self._tc("change", link, mbit)

    def _tc(self, verb: str, link: int, mbit: int) -> None:
        # A burst below what the kernel hands down at once would be cut into packets here, at the cost of a core.
        rate = ("tbf", "rate", f"{mbit}mbit", "burst", "96kb", "latency", "50ms")
        run("tc", "-n", self.hosts[0], "qdisc", verb, "dev", f"nic{link}", "root", *rate)

    def unlimit(self, link: int) -> None:
        command = ("tc", "-n", self.hosts[0], "qdisc", "del", "dev", f"nic{link}", "root")
        subprocess.run(command, capture_output=True, check=False)

    def set_link(self, link: int, state: str) -> None:
        run("ip", "-n", self.hosts[1], "link", "set", f"nic{link}", state)

    def sent_bytes(self, link: int) -> int:
        command = ("ip", "-n", self.hosts[0], "-s", "-j", "link", "show", f"nic{link}")
        shown = json.loads(subprocess.check_output(command, text=True))
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def close(self) -> None:
        for host in self.hosts:
            # The links go with it.
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def arguments(bed: Bed, links: list[int], round_bytes: int, *more: str, page_bytes: int = PAGE_BYTES) -> list[str]:
    """kvperf's, from this host to the other, every byte checked."""
    return [
        *("--transport", "tcp", "--check"),
        *("--page-bytes", str(page_bytes), "--page-count", str(round_bytes // page_bytes)),
        *("--pool-bytes", str(2 * round_bytes), "--hosts", ",".join(bed.near[link] for link in links)),
        *("--target-hosts", ",".join(bed.far[link] for link in links)),
        *("--target-prefix", " ".join(bed.at(bed.hosts[1])), *more),
    ]


class Rounds:
    """A process on the near host that moves a round to the far one whenever it is asked to."""

    def __init__(self, bed: Bed, *command: str) -> None:
        near = bed.at(bed.hosts[0])
        self._process = subprocess.Popen([*near, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line("ready")

    def _line(self, expected: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected and line != expected):
            raise SystemExit(f"multi-path: the answer was {line!r}")
        return line

    def send(self, asked: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(asked)
        self._process.stdin.flush()

    def begin(self) -> None:
        self.send("\n")

    def end_seconds(self) -> float:
        return int(self._line().split()[0]) / 1e9

    def seconds(self, rounds: int) -> list[float]:
        took = []
        for _ in range(rounds):
            self.begin()
            took.append(self.end_seconds())
        return took

    def signal(self, number: int) -> None:
        """To the process that writes."""
        self._process.send_signal(number)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


class Pair(Rounds):
    """kvperf, every byte checked."""

    def __init__(self, bed: Bed, links: list[int], round_bytes: int, *more: str, page_bytes: int = PAGE_BYTES) -> None:
        own = arguments(bed, links, round_bytes, *more, page_bytes=page_bytes)
        super().__init__(
            bed,
            *(str(ROOT / "connector-java/benchmarks/kvperf"), "--turns"),
            *(*own, *shlex.split(os.environ.get("MULTI_PATH_KVPERF", ""))),
        )


@contextmanager
def pair(bed: Bed, links: list[int], rates: list[int], round_bytes: int, *more: str) -> Iterator[Pair]:
    """Warmed up without limits: then the links get theirs."""
    opened = Pair(bed, links, round_bytes, *more)
    try:
        for link, mbit in zip(links, rates, strict=True):
            bed.limit(link, mbit)
        yield opened
    finally:
        for link in links:
            bed.unlimit(link)
        opened.close()


def speeds(bed: Bed, links: list[int], rates: list[int], round_bytes: int, rounds: int) -> list[float]:
    """Of each round, in Mb/s."""
    with pair(bed, links, rates, round_bytes) as opened:
        opened.seconds(1)
        return [round_bytes * 8 / 1e6 / seconds for seconds in opened.seconds(rounds)]


def alone(bed: Bed, link: int, mbit: int) -> float:
    return statistics.median(speeds(bed, [link], [mbit], 32 * MIB, 5))


def alike(bed: Bed) -> dict[str, object]:
    """Two links of one rate: how many times as fast as one."""
    one = alone(bed, 0, FAST_MBIT)
    both = statistics.median(speeds(bed, [0, 1], [FAST_MBIT, FAST_MBIT], 100 * MIB, 7))
    return {"oneMbit": round(one), "bothMbit": round(both), "times": round(both / one, 3)}


def unlike(bed: Bed) -> dict[str, object]:
    """Links of 4 : 1, a long transfer, and short ones one at a time."""
    total = alone(bed, 0, FAST_MBIT) + alone(bed, 1, SLOW_MBIT)
    rates = [FAST_MBIT, SLOW_MBIT]
    long = statistics.median(speeds(bed, [0, 1], rates, 100 * MIB, 7))
    short = sorted(4 * MIB * 8 / 1e3 / mbit for mbit in speeds(bed, [0, 1], rates, 4 * MIB, 41))
    best = 4 * MIB * 8 / 1e3 / total
    return {
        "sumMbit": round(total),
        "longMbit": round(long),
        "shareOfSum": round(long / total, 3),
        "shortBestMillis": round(best, 1),
        "shortMillis": [round(short[len(short) * at // 100], 1) for at in (0, 25, 50, 75, 90)],
        "shortTimesBest": round(short[len(short) // 2] / best, 3),
    }


def slowing(bed: Bed) -> dict[str, object]:
    """One of two links drops to a tenth in the middle of a transfer: times as long as at the rates that there are."""
    rate, total = 400, 100 * MIB
    after = alone(bed, 0, rate) + alone(bed, 1, rate // 10)
    costs = []
    with pair(bed, [0, 1], [rate, rate], total) as opened:
        opened.seconds(2)
        for _ in range(5):
            before = [bed.sent_bytes(link) for link in (0, 1)]
            began = time.monotonic()
            opened.begin()
            while sum(bed.sent_bytes(link) for link in (0, 1)) - sum(before) < total / 2:
                time.sleep(0.01)
            bed.change(1, rate // 10)
            sent = sum(bed.sent_bytes(link) for link in (0, 1)) - sum(before)
            fair = time.monotonic() - began + (total - sent) * 8 / 1e6 / after
            costs.append(opened.end_seconds() / fair)
            bed.change(1, rate)
            opened.seconds(1)
    return {"timesFair": [round(cost, 3) for cost in sorted(costs)]}


def losing(bed: Bed) -> dict[str, object]:
    """Two of four links go down in the middle of a transfer, and come back."""
    links, rate, total = [0, 1, 2, 3], 200, 100 * MIB
    with pair(bed, links, [rate] * 4, total) as opened:
        whole = statistics.median(opened.seconds(3))
        opened.begin()
        time.sleep(whole / 2)
        for link in (2, 3):
            bed.set_link(link, "down")
        lost = opened.end_seconds()
        halved = statistics.median(opened.seconds(2))
        for link in (2, 3):
            bed.set_link(link, "up")
        back = time.monotonic()
        again = 0.0
        for _ in range(20):
            again = opened.seconds(1)[0]
            if again < 1.1 * whole:
                break
        took = time.monotonic() - back
    return {
        "wholeSeconds": round(whole, 2),
        "lostSeconds": round(lost, 2),
        "halvedSeconds": round(halved, 2),
        "againSeconds": round(again, 2),
        "backAfterSeconds": round(took, 1),
    }


CASES: dict[str, Callable[[Bed], dict[str, object]]] = {
    "alike": alike,
    "unlike": unlike,
    "slowing": slowing,
    "losing": losing,
}


def main() -> None:
    arguments = sys.argv[1:]
    congestion = ""
    if arguments[:1] == ["--congestion"] and len(arguments) > 1:
        congestion = arguments[1]
        del arguments[:2]
    unknown = [name for name in arguments if name not in CASES]
    if unknown:
        raise SystemExit(f"multi-path: {unknown[0]!r} is no case, expected some of {', '.join(CASES)}")
    bed = Bed(4, congestion)
    try:
        for name in arguments or CASES:
            load = os.getloadavg()[0]
            figures = CASES[name](bed)
            print(json.dumps({"case": name} | figures | {"load": round(load, 1)}), flush=True)
    finally:
        bed.close()


if __name__ == "__main__":
    main()
