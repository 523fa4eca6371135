"""One prefiller and several decoders at messenger level: a rate that rises until it bends, then a soak below that.

    soak.py [--decoders 3] [--transport tcp] [--minutes 20] [--step-seconds 10] [--rate R] [--output FILE]

Every messenger is a process with a JVM of its own, as in an engine, and moves prompts of 8 pages of 64 KiB. Prints a
JSON line for what a peer costs, one for each rate, one for each sample of the soak and one for its end. Speed is of
this machine, so nothing is asserted about it; the status is 1 where a transfer failed or a decoder still held something
at the end.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIDE = Path(__file__).with_name("soak_side.py")
FIRST_RATE = 30.0
RATE_FACTOR = 1.6
RATE_MAX = 20_000.0
BEND_FACTOR = 1.15
"""A step that lasts so much longer than it offers requests has bent: they wait, for a free slot or for their pages."""
SOAK_SHARE = 0.4
"""Of the highest rate that was served."""
SAMPLE_SECONDS = 10.0
WARM_SHARE = 1 / 3
"""Of the soak: what a JVM and an allocator take once is no leak."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Held:
    """What a process has of the machine."""

    kib: int
    """Resident, and its own: KV memory is mapped by both sides over shm, and no messenger's."""
    cpu_seconds: float
    descriptors: int


class Process:
    """A messenger. One command at a time."""

    def __init__(self, **asked: Any) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
        self._process = subprocess.Popen(
            [sys.executable, str(SIDE), json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.opened = self._answer()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"soak: a messenger's process ended with status {self._process.wait()}")
        return dict(json.loads(line))

    def held(self) -> Held:
        home = Path("/proc") / str(self._process.pid)
        status = dict(line.split(":", 1) for line in (home / "status").read_text().splitlines())
        stat = (home / "stat").read_text().rpartition(")")[2].split()
        return Held(
            int(status["RssAnon"].split()[0]),
            (int(stat[11]) + int(stat[12])) / TICKS,
            len(list((home / "fd").iterdir())),
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Soak:
    """The processes, and where lines go."""

    def __init__(self, decoders: int, transport: str, output: Path | None) -> None:
        self._output = output
        self._transport = transport
        self.failed = 0
        self.prefiller = Process(role="prefiller", transport=transport, decoders=decoders)
        place = {"host": self.prefiller.opened["host"], "port": self.prefiller.opened["port"], "engineId": ""}
        self.decoders = [
            Process(role="decoder", transport=transport, number=number, prefiller=place) for number in range(decoders)
        ]

    def say(self, what: str, **figures: Any) -> None:
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        line = json.dumps({"at": at, "what": what, "transport": self._transport} | figures)
        print(line, flush=True)
        if self._output:
            with self._output.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def meet(self) -> None:
        """What each peer costs the prefiller, from the first transfer with each of them."""
        before = self.prefiller.held()
        for number, decoder in enumerate(self.decoders):
            self.count(decoder.ask(do="offer", rate=20.0, seconds=1.0))
            after = self.prefiller.held()
            self.say(
                "peer",
                number=number + 1,
                kib=after.kib - before.kib,
                descriptors=after.descriptors - before.descriptors,
            )
            before = after

    def count(self, counts: dict[str, Any]) -> None:
        self.failed += int(counts["failed"])
        if counts["failed"]:
            self.say("failed", reasons=counts["reasons"])

    def offer(self, rate: float, seconds: float) -> dict[str, float]:
        """That many requests a second, by all decoders together."""
        before = [process.held() for process in self.processes()]
        with ThreadPoolExecutor(len(self.decoders)) as pool:
            share = rate / len(self.decoders)
            reports = list(
                pool.map(lambda decoder: decoder.ask(do="offer", rate=share, seconds=seconds), self.decoders)
            )
        after = [process.held() for process in self.processes()]
        for one in reports:
            self.count(one)
        taken = sorted(seconds for one in reports for seconds in one["taken"])
        lasted = max(float(one["seconds"]) for one in reports)
        cpu = [now.cpu_seconds - was.cpu_seconds for was, now in zip(before, after, strict=True)]
        per_thousand = 1000 / max(1, len(taken))
        return {
            "rate": round(rate, 1),
            "served": round(len(taken) / lasted, 1),
            "bent": lasted > BEND_FACTOR * seconds,
            "p50Ms": round(1000 * statistics.median(taken), 2),
            "p99Ms": round(1000 * taken[int(len(taken) * 0.99)], 2),
            "prefillerCpuSecondsPer1000": round(cpu[0] * per_thousand, 3),
            "decoderCpuSecondsPer1000": round(sum(cpu[1:]) * per_thousand, 3),
        }

    def rise(self, step_seconds: float) -> float:
        """The highest rate that was served, before the one that was not."""
        served, rate = FIRST_RATE, FIRST_RATE
        while rate < RATE_MAX:
            figures = self.offer(rate, step_seconds)
            self.say("rate", **figures)
            served = max(served, figures["served"])
            if figures["bent"]:
                break
            rate *= RATE_FACTOR
        return served

    def soak(self, rate: float, minutes: float) -> None:
        began = time.monotonic()
        samples: list[tuple[float, list[Held]]] = []
        transfers = 0.0
        while time.monotonic() < began + 60 * minutes:
            figures = self.offer(rate, SAMPLE_SECONDS)
            transfers += figures["served"] * SAMPLE_SECONDS
            samples.append((time.monotonic() - began, [process.held() for process in self.processes()]))
            kib = [held.kib for held in samples[-1][1]]
            descriptors = [held.descriptors for held in samples[-1][1]]
            self.say("soak", seconds=round(samples[-1][0]), kib=kib, descriptors=descriptors, **figures)
        warm = samples[int(len(samples) * WARM_SHARE) :]
        growth = [slope([(at, held[i].kib) for at, held in warm]) for i in range(len(warm[0][1]))]
        opened = [slope([(at, held[i].descriptors) for at, held in warm]) for i in range(len(warm[0][1]))]
        self.say(
            "soaked",
            minutes=round((time.monotonic() - began) / 60, 1),
            transfers=round(transfers),
            kibPerHour=[round(3600 * per_second) for per_second in growth],
            kibPer1000Transfers=[round(1000 * per_second / rate, 2) for per_second in growth],
            descriptorsPerHour=[round(3600 * per_second, 1) for per_second in opened],
        )

    def processes(self) -> list[Process]:
        return [self.prefiller, *self.decoders]

    def end(self) -> bool:
        """Whether nothing is held and nothing has failed. The prefiller's prompts are ready, and so are held."""
        clean = [decoder.ask(do="check") for decoder in self.decoders]
        prefiller = self.prefiller.ask(do="check")
        self.say("end", failed=self.failed, decodersClean=[one["clean"] for one in clean], prefiller=prefiller["held"])
        for process in reversed(self.processes()):
            process.close()
        return self.failed == 0 and all(one["clean"] for one in clean)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two of them: a heap that takes its next regions once is no leak."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2)]
    return statistics.median(slopes) if slopes else 0.0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Load and soak of one prefiller and several decoders.")
    parser.add_argument("--decoders", type=int, default=3)
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp")
    parser.add_argument("--minutes", type=float, default=20.0, help="of the soak; 0 = none")
    parser.add_argument("--step-seconds", type=float, default=10.0, help="of each rate")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="of the soak, requests a second; no rate is tried first"
    )
    parser.add_argument("--output", type=Path, help="lines are appended to it as well")
    asked = parser.parse_args(arguments)
    soak = Soak(asked.decoders, asked.transport, asked.output)
    soak.say("machine", cores=os.cpu_count(), load=os.getloadavg()[0], decoders=asked.decoders)
    soak.meet()
    rate = asked.rate or SOAK_SHARE * soak.rise(asked.step_seconds)
    if asked.minutes > 0:
        soak.soak(rate, asked.minutes)
    return 0 if soak.end() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
