"""Weights that a trainer brings into a vLLM server while clients read: ours, a broadcast, and a reload, in turns.

    make race-weights [ARGS="--ranks 2 --rounds 6 --kill"]

The server is on a second host (a network namespace) behind a link of 1 Gb/s. Every flow has a trainer process with two
checkpoints, sends them in turns with the others, and every answer behind an update is compared with a plain vLLM's of
the same checkpoint; of answers under way each token is. The broadcast is vLLM's own flow with gloo in place of NCCL.
Over one host's memory others are beside it: our sender over shm, and a folder in /dev/shm that vLLM reloads, either as
it is, or within a pause, behind which the KV of answers under way is computed anew. Before each of ours kvperf uses the
link.
With --kill the trainers of the first two are killed in mid-update instead. Wants a quiet machine, and root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")
)

import quiet
import weight_kills
from demo_console import say, unwind_on_sigterm
from engine_race import begin_apart, named_alike
from hosts import Host, second_host
from race import KVPERF, Turning
from warm_starts import LAUNCHER
from weight_bed import BROADCAST, FLOWS, OURS, Bed, started
from weight_figures import Update, aligned, bounds, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE_BYTES: Final = 4 << 20
PAGE_COUNT: Final = 46
"""As much as an update, in writes of the same size."""
KVPERF_WORK: Final = (
    *("--turns", "--transport", "tcp", "--batch-pages", "1", "--pool-bytes", "256M"),
    *("--page-bytes", str(PAGE_BYTES), "--page-count", str(PAGE_COUNT)),
    *("--threading", "own"),
)
"""By a thread of its own: the caller's would send no heartbeats while it waits for its turn."""


def updates(bed: Bed, kvperf: Kvperf, given: argparse.Namespace, stack: ExitStack) -> Iterator[dict[str, Any]]:
    """Each flow in turn, another one first in each round, so that each sends both checkpoints."""
    flows = given.flows
    trainers = {flow: bed.trainer(flow) for flow in flows}
    for flow, trainer in trainers.items():
        stack.callback(trainer.end)
        seen = trainer.ask("connect")
        yield {"row": "connected", "flow": flow, "seconds": round(seen["ended"] - seen["begun"], 2)}
    number = 0
    for index in range(given.rounds):
        for flow in [*flows[index % len(flows) :], *flows[: index % len(flows)]]:
            number = 1 - number
            before = quiet.now()
            rate = kvperf.rate() if flow == OURS else 0.0
            update = bed.update(trainers[flow], flow, index, number, rate)
            foreign = quiet.foreign_cores(before, quiet.now())
            yield {"row": "update", **dataclasses.asdict(update), "foreignCores": round(foreign, 2)}


class Kvperf(Turning):
    """kvperf over the same link."""

    def __init__(self, host: Host) -> None:
        hosts = ["--hosts", host.data.near, "--target-hosts", host.data.far, "--target-prefix", " ".join(host.prefix)]
        super().__init__("kvperf", [str(KVPERF), *KVPERF_WORK, *hosts])
        self.await_ready()

    def rate(self) -> float:
        """Bytes a second of one round."""
        took_ns, _ = self.round()
        return PAGE_BYTES * PAGE_COUNT / took_ns * 1e9


def raced(bed: Bed, given: argparse.Namespace, stack: ExitStack) -> Iterator[dict[str, Any]]:
    kvperf = Kvperf(bed.host)
    stack.callback(kvperf.end)
    about = {"ranks": bed.ranks, "streams": given.streams, "promptTokenMs": round(bed.time_prompts() * 1e3, 3)}
    yield {"row": "about", "modelBytes": bed.model_bytes, **about}
    bed.read(given.streams, given.answer_tokens)
    yield from updates(bed, kvperf, given, stack)
    bed.end_reading()


def summary(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The table, and what was to be shown."""
    names = {each.name for each in dataclasses.fields(Update)}
    seen = [Update(**{name: line[name] for name in names}) for line in lines if line["row"] == "update"]
    if not seen:
        return
    (about,) = (line for line in lines if line["row"] == "about")
    yield f"{about['ranks']} ranks, {about['streams']} streams, a model of {about['modelBytes']} bytes"
    yield from aligned(list(rows(seen, about["modelBytes"])))
    for sentence, figure, most in bounds(seen, about["modelBytes"], OURS, BROADCAST):
        yield f"{'kept  ' if figure <= most else 'MISSED'} {sentence}: {figure:.3f}, at most {most:.3f}"


def run(given: argparse.Namespace) -> None:
    folder = ROOT / "build" / "race-weights" / time.strftime("%Y%m%d-%H%M%S")
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, f"/dev/shm/kv-messenger-race-{os.getpid()}", ignore_errors=True)
        stack.callback(LAUNCHER.stop)
        host = stack.enter_context(second_host())
        named_alike(host)
        bed = started(host, given.ranks, folder, stack, given.answer_tokens)
        if not quiet.wait_quiet(given.wait_seconds):
            say("race-weights: the machine did not become quiet")
        for line in weight_kills.lines(bed, given) if given.kill else raced(bed, given, stack):
            lines.append(line)
            print(json.dumps(line), flush=True)
    for text in summary(lines):
        print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="of tensor parallelism")
    parser.add_argument("--rounds", type=int, default=6, help="in which each flow has its turn")
    parser.add_argument("--flows", nargs="+", choices=list(FLOWS), default=list(FLOWS))
    parser.add_argument("--streams", type=int, default=2, help="that are always open")
    parser.add_argument("--answer-tokens", type=int, default=100, help="of each answer that is streamed")
    parser.add_argument("--kill", action="store_true", help="trainers in mid-update, of ours and of the broadcast")
    parser.add_argument("--wait-seconds", type=float, default=60.0, help="for a quiet machine, before the first round")
    given = parser.parse_args()
    subprocess.run([str(KVPERF), "--help"], stdout=subprocess.DEVNULL, check=True)  # is built where there is a network
    unwind_on_sigterm()
    begin_apart("race-weights", "--net", "--mount")
    subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
    run(given)


if __name__ == "__main__":
    main()
