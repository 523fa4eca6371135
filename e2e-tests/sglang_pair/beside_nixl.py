"""Prints how long a decoder waits for KV after the prefiller's last forward pass, beside SGLang's own NIXL backend.

Both backends serve the same pair of servers on CPU, one after the other in one run, and are asked the same prompts; the
same two stamps are taken from either. Both must give the same words, or the figures would say nothing.

    make beside-nixl
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
)

from demo_console import say, unwind_on_sigterm
from make_model import cached_model
from prompts import cache_home
from server_process import Server, words_of
from sglang_bed import Ground, Kind, Pair
from workload import ANSWER_TOKENS, Series

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REPEATS = 7
WARM_UP = Series(seed=51, lengths=(65, 257, 720))
TIMED = {tokens: Series(seed=52 + tokens, lengths=(tokens,) * REPEATS) for tokens in (65, 257, 720)}
STAMPED = {"PYTHONPATH": str(HERE / "plugins"), "SGLANG_PLUGINS": "kv_messenger,nixl_on_cpu,stopwatch"}
KINDS = (
    Kind("nixl", {**STAMPED, "UCX_TLS": "tcp,shm,self", "UCX_NET_DEVICES": "lo"}, started_by=Server),
    Kind("kv_messenger", STAMPED, started_by=Server),
)
STAMP = re.compile(r"stopwatch (\w+) room=(\d+) at_ns=(\d+)")


def stamps(log: str, what: str) -> dict[int, int]:
    """The last stamp of each room."""
    return {int(room): int(at_ns) for kind, room, at_ns in STAMP.findall(log) if kind == what}


def waits_ms(pair: Pair) -> dict[int, float]:
    """By room: from the end of the prompt's last forward pass to the decoder's taking the request."""
    ended = stamps(pair.prefiller.server.log(), "forward_end")
    ready = stamps(pair.decoder.server.log(), "ready")
    return {room: (at_ns - ended[room]) / 1e6 for room, at_ns in ready.items() if room in ended}


def measured(pair: Pair, series: Series, words: dict[str, list[str]]) -> list[float]:
    """Asks the prompts one by one; `words` holds what they were answered before, and takes what they are now."""
    known = waits_ms(pair).keys()
    for prompt in series.prompts():
        answer = words_of(pair.ask(prompt, ANSWER_TOKENS))
        if words.setdefault(prompt, answer) != answer:
            raise SystemExit(f"a prompt of {len(prompt.split())} tokens was answered with other words than before")
    pair.wait_at_rest()
    found = [wait for room, wait in waits_ms(pair).items() if room not in known]
    if len(found) != len(series.lengths):
        raise SystemExit(
            f"{len(found)} of {len(series.lengths)} requests left stamps: is the stopwatch in both servers?"
        )
    return found


def summary(waits: list[float]) -> str:
    median = statistics.median(waits)
    return (
        f"{median:7.2f} ms from forward end to decoder ready (median of {REPEATS}, {waits[0]:.2f} to {waits[-1]:.2f})"
    )


def main() -> int:
    unwind_on_sigterm()
    folder = ROOT / "build" / "beside-nixl" / time.strftime("%Y%m%d-%H%M%S")
    model = cached_model(cache_home())
    words: dict[str, list[str]] = {}
    for kind in KINDS:
        with ExitStack() as stack:
            pair = Ground(model, folder).started_pair(stack, kind, kind.backend)
            measured(pair, WARM_UP, words)
            for tokens, series in TIMED.items():
                waits = sorted(measured(pair, series, words))
                say(f"{kind.backend:12s} {tokens:4d} tokens: {summary(waits)}, load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
