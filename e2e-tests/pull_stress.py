"""Stops and kills engines in each state of their pulls while conversations move between them; compares each answer.

    make pull-stress [ARGS="--rounds 30 --seed 1"]

Two prefillers, a decoder and a plain vLLM. Each round draws a pull, the state in which it is met, and what happens
then: one side stands still or is killed, its client leaves, caches are emptied, all engines get other weights.
Conversations of other clients go on beside it. Afterwards the engines hold nothing, and a pull arrives. The exit code
is 1 if an answer is wrong or missing without a cause, or if anything stays held.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.extend(str(ROOT / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d"))

from conversations import Beside, Conversations, Turn, words  # noqa: E402
from demo_console import unwind_on_sigterm  # noqa: E402
from faults import Outcome, attempt, busy  # noqa: E402
from processes import kill, stopped  # noqa: E402
from stress_bed import LIMIT_SECONDS, SEQUENCES_MAX, Bed  # noqa: E402
from warm_starts import LAUNCHER  # noqa: E402

CLIENTS: Final = 2
LAYERS_MAX: Final = 3
STATE_LIMIT_SECONDS: Final = 30.0
STOPPED_SECONDS: Final = (0.2, 14.0)
"""Shorter and longer than silence_limit_seconds, after which a side is given up."""
HISTORY_TOKENS: Final = (64, 500)
NEW_TOKENS: Final = (1, 120)
LANDED_TOKENS: Final = 60
"""Of the answer that is being written when something happens to a pull that has arrived."""
STATES: Final = ("asked", "offered", "granted", "half landed", "landed")
FAULTS: Final = ("stopped", "killed", "client leaves", "caches emptied", "other weights")
SIDES: Final = ("source", "asker", "decoder")
OTHER_WEIGHTS_STATES: Final = ("offered", "granted", "half landed")
"""Those in which no engine stands still, since all must load them."""

Reached = Callable[[], bool]


class Round:
    """One pull, the state in which it is met, and what happens then."""

    def __init__(self, bed: Bed, number: int, draw: random.Random) -> None:
        self._bed = bed
        self._draw = draw
        prefillers, decoder = bed.engines[:2], bed.engines[2]
        self.fault, self.state, self.side = draw.choice(FAULTS), draw.choice(STATES), draw.choice(SIDES)
        if self.fault == "other weights":
            self.state = draw.choice(OTHER_WEIGHTS_STATES)
        self.asker = draw.choice(prefillers)
        self.source = draw.choice([each for each in bed.engines if each is not self.asker])
        self.decoder = decoder if self.side == "decoder" or draw.random() < 0.5 else None
        if self.fault == "other weights" and self.source is decoder:
            self.decoder = None  # its own cache has the history, of the weights before, as that of any vLLM has
        self._victim = {"source": self.source, "asker": self.asker, "decoder": decoder}[self.side]
        of_victim = f" {self.side}" if self.fault in ("stopped", "killed") else ""
        self.described = (
            f"round {number}: {self.state}, {self.fault}{of_victim}; {self.asker.name} of {self.source.name}"
        )

    def run(self) -> bool:
        """Whether the state was reached."""
        bed, draw = self._bed, self._draw
        if self.fault == "killed":
            bed.load(0)  # with these it comes back
            bed.empty()
        bed.prove(self.asker, self.source)
        history = " ".join(words(draw.randint(*HISTORY_TOKENS), draw))
        attempt(self.source.server.post, "/v1/completions", bed.body(history))
        landed = self.state == "landed"
        turn = Turn(
            f"{history} {' '.join(words(draw.randint(*NEW_TOKENS), draw))}",
            "",
            self.asker,
            None if landed else self.decoder,
            self.source,
            tokens=LANDED_TOKENS if landed else bed.answer_tokens,
        )
        conversations = [
            Conversations(bed.comparison, bed.engines[:2], bed.engines[2], f"{draw.random()}") for _ in range(CLIENTS)
        ]
        # Other weights: what runs meanwhile would be computed with both.
        with nullcontext() if self.fault == "other weights" else Beside(conversations):
            reached = self._met(turn)
        bed.rest()
        if self.fault == "other weights":
            bed.empty()
        return reached

    def _met(self, turn: Turn) -> bool:
        bed = self._bed
        deaths, before = turn.answers().deaths, bed.comparison.right(turn).words
        leaving = self.fault == "client leaves"
        gone = Event()
        turn = replace(turn, left=gone) if leaving else turn
        with ThreadPoolExecutor(1) as client, ExitStack() as during:
            reached = during.enter_context(self._state())
            asked: Future[Outcome] = client.submit(bed.comparison.sent, turn)
            try:
                is_reached = self._wait(reached, asked)
                self._happens(during, gone)
            finally:
                gone.set()
                during.close()
            outcome = asked.result(LIMIT_SECONDS)
        self._restart()
        bed.comparison.compared(turn, outcome, died=deaths != turn.answers().deaths, before=before)
        return is_reached

    def _wait(self, reached: Reached, asked: Future[Outcome]) -> bool:
        deadline = time.monotonic() + STATE_LIMIT_SECONDS
        while not (is_reached := reached()) and not asked.done() and time.monotonic() < deadline:
            Event().wait(0.005)
        return is_reached

    @contextmanager
    def _state(self) -> Iterator[Reached]:
        """Meanwhile the pull does not leave the state."""
        source, asker = self.source, self.asker
        if self.state == "asked":
            before = asker.messenger.metric("kv_messenger_pulls_ended_total")
            with stopped(source.server.pid):
                yield (
                    lambda: (
                        asker.server.metric("vllm:num_requests_waiting") > 0
                        or asker.messenger.metric("kv_messenger_pulls_ended_total") > before
                    )
                )
        elif self.state == "offered":
            with busy(asker.messenger, SEQUENCES_MAX):
                yield lambda: source.messenger.metric("kv_messenger_pages_offered") > 0
        elif self.state == "landed":
            before = asker.messenger.metric("kv_messenger_pulls_ended_total", reason="arrived")
            yield lambda: asker.messenger.metric("kv_messenger_pulls_ended_total", reason="arrived") > before
        else:
            count = 0 if self.state == "granted" else self._draw.randint(1, LAYERS_MAX)
            with self._bed.gates[source.name].closed(after=count):
                yield lambda: source.messenger.metric("kv_messenger_writes_in_flight") > 0

    def _happens(self, during: ExitStack, gone: Event) -> None:
        victim, bed = self._victim, self._bed
        if self.fault == "killed":
            victim.up.clear()
            victim.deaths += 1
            kill(victim.server.pid)
        elif self.fault == "stopped":
            with stopped(victim.server.pid):
                if not (self.state == "asked" and victim is self.source):  # it is the state that it stands still
                    during.pop_all().close()
                Event().wait(self._draw.uniform(*STOPPED_SECONDS))
        elif self.fault == "client leaves":
            gone.set()
        elif self.fault == "caches emptied":
            for each in bed.engines:
                if not (self.state == "asked" and each is self.source):  # which stands still
                    attempt(each.server.post, "/reset_prefix_cache", {})
        else:
            bed.load(1 - bed.weights)

    def _restart(self) -> None:
        if self.fault == "killed":
            self._bed.restart(self._victim)


def main(arguments: Sequence[str] | None = None) -> int:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(prog="pull-stress", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round, to repeat one")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    folder = ROOT / "build" / "pull-stress" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        bed = Bed.started(folder, stack)
        for number in range(asked.first, asked.first + asked.rounds):
            drawn = Round(bed, number, random.Random(f"{asked.seed} {number}"))
            print(drawn.described, flush=True)
            begun_seconds = time.monotonic()
            bed.counted["state reached" if drawn.run() else "state not reached"] += 1
            print(f"  {time.monotonic() - begun_seconds:.0f} s, {bed.shown()}", flush=True)
        bed.ends_well()
    print(f"seed {asked.seed}: {bed.shown()}", flush=True)
    return 1 if bed.comparison.seen.faults else 0


if __name__ == "__main__":
    sys.exit(main())
