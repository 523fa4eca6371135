"""Prints how long a decoder waits for KV after the prefiller's last forward pass, beside SGLang's own NIXL backend.

Both backends serve a pair of servers on CPU, all of them started at once, and are asked the same prompts by turns; the
same two stamps are taken from either. Both must give the same words, or the figures would say nothing.

    make beside-nixl [ARGS="--prompts 200"]
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
)

from demo_console import say, unwind_on_sigterm
from make_model import cached_model
from processes import stopped
from prompts import cache_home
from server_process import Server, words_of
from sglang_bed import Ground, Kind, Pair
from workload import Series

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LENGTHS = (65, 257, 720)
PROMPTS = 7
AT_ONCE = (1, 8)
BLOCK_ROUNDS = 3
"""How many prompts each of the requests at once asks before the other backend has its turn, unless it is only one."""
ANSWER_TOKENS = 2
"""The prefiller computes the first one, and the decoder the second one from what it has received."""
WARM_UP = Series(seed=51, lengths=(*LENGTHS, *LENGTHS))
STAMPED = {"PYTHONPATH": str(HERE / "plugins"), "SGLANG_PLUGINS": "kv_messenger,nixl_on_cpu,stopwatch"}
KINDS = (
    Kind("nixl", {**STAMPED, "UCX_TLS": "tcp,shm,self", "UCX_NET_DEVICES": "lo"}, started_by=Server),
    Kind("kv_messenger", STAMPED, started_by=Server),
)
STAMP = re.compile(r"stopwatch (\w+) room=(\d+) at_ns=(\d+)")
SHOWN = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def stamps(log: str, what: str) -> dict[int, int]:
    """The last stamp of each room."""
    return {int(room): int(at_ns) for kind, room, at_ns in STAMP.findall(log) if kind == what}


def waits_ms(pair: Pair) -> dict[int, float]:
    """By room: from the end of the prompt's last forward pass to the decoder's taking the request."""
    ended = stamps(pair.prefiller.server.log(), "forward_end")
    ready = stamps(pair.decoder.server.log(), "ready")
    return {room: (at_ns - ended[room]) / 1e6 for room, at_ns in ready.items() if room in ended}


@dataclass
class Asked:
    """The pairs of both backends, and what each prompt was answered."""

    pairs: Mapping[str, Pair]
    words: dict[str, list[str]] = field(default_factory=dict)

    def ask(self, backend: str, prompt: str) -> None:
        """Asks one prompt, whose answer must be that of the other backend."""
        answer = words_of(self.pairs[backend].ask(prompt, ANSWER_TOKENS))
        if self.words.setdefault(prompt, answer) != answer:
            raise SystemExit(
                f"{backend} answered a prompt of {len(prompt.split())} tokens with {answer}, expected the other"
                f" backend's {self.words[prompt]}: one of them gave its decoder wrong KV"
            )

    def by_turns(self, series: Series, at_once: int) -> None:
        """Asks both backends all prompts, a block at a time; they take turns in being the first to have a block."""
        prompts = series.prompts()
        block = at_once * BLOCK_ROUNDS if at_once > 1 else 1
        with ThreadPoolExecutor(at_once) as clients:
            for turn, first in enumerate(range(0, len(prompts), block)):
                for backend in list(self.pairs)[:: -1 if turn % 2 else 1]:
                    with self.alone(backend):
                        list(clients.map(lambda prompt, b=backend: self.ask(b, prompt), prompts[first : first + block]))

    @contextmanager
    def alone(self, backend: str) -> Iterator[None]:
        """The other backend's engines stand still: threads of NIXL's poll without pause, and would take the cores."""
        with ExitStack() as stack:
            for other, pair in self.pairs.items():
                if other != backend:
                    for side in (pair.prefiller, pair.decoder):
                        stack.enter_context(stopped(side.server.pid))
            yield

    def measured(self, series: Series, at_once: int) -> dict[str, list[float]]:
        """The sorted waits of each backend, in milliseconds."""
        known = {backend: waits_ms(pair).keys() for backend, pair in self.pairs.items()}
        self.by_turns(series, at_once)
        found = {}
        for backend, pair in self.pairs.items():
            pair.wait_at_rest()
            found[backend] = sorted(wait for room, wait in waits_ms(pair).items() if room not in known[backend])
            if len(found[backend]) != len(series.lengths):
                raise SystemExit(
                    f"{len(found[backend])} of {len(series.lengths)} requests of {backend} left stamps: is the"
                    " stopwatch in both servers?"
                )
        return found


def nearest_rank(waits: Sequence[float], share: float) -> float:
    """The smallest of the sorted waits that at least this share of them do not exceed."""
    return waits[max(0, math.ceil(share * len(waits)) - 1)]


def row(tokens: int, at_once: int, backend: str, waits: Sequence[float]) -> str:
    """A row of the table, with the load of the machine while it was measured."""
    figures = " | ".join(f"{nearest_rank(waits, share):.1f}" for share in SHOWN.values())
    return f"| {tokens} | {at_once} | {backend} | {len(waits)} | {figures} | {os.getloadavg()[0]:.1f} |"


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of prompts, expected 1 or more, as in --prompts 200"
        )
    return int(text)


def main() -> int:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--prompts",
        type=positive,
        default=PROMPTS,
        help="prompts of each length; a p99 needs 200 (default: %(default)s)",
    )
    prompts: int = parser.parse_args().prompts
    folder = ROOT / "build" / "beside-nixl" / time.strftime("%Y%m%d-%H%M%S")
    model = cached_model(cache_home())
    with ExitStack() as stack:
        pairs = {kind.backend: Ground(model, folder).started_pair(stack, kind, kind.backend) for kind in KINDS}
        asked = Asked(pairs)
        asked.by_turns(WARM_UP, 1)
        say(f"| prompt | at once | backend | prompts | {' | '.join(f'{name}, ms' for name in SHOWN)} | load |")
        say(f"|{'--:|' * (5 + len(SHOWN))}")
        for at_once in AT_ONCE:
            for tokens in LENGTHS:
                series = Series(seed=52 + tokens + 500 * (at_once > 1), lengths=(tokens,) * prompts)
                for backend, waits in asked.measured(series, at_once).items():
                    say(row(tokens, at_once, backend, waits))
    return 0


if __name__ == "__main__":
    sys.exit(main())
