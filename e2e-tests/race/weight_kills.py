"""A trainer that is killed when a third of its bytes have left, by our flow and by the broadcast: what each leaves."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

from weight_bed import BROADCAST, OURS, TRAINER_LIMIT_SECONDS, Bed, LinkMeter, waited
from weight_figures import Span, longest_gap, usual_gap

WATCHED_SECONDS: Final = 20.0
ASKED_SECONDS: Final = 20.0
NEXT_SECONDS: Final = 90.0
"""For a new trainer, with its start."""


def lines(bed: Bed, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Ours first: the server serves afterwards."""
    bed.read(given.streams, given.answer_tokens)
    for flow in (OURS, BROADCAST):
        if flow in given.flows:
            served = 0 if bed.serves(0) else 1
            yield killed(bed, flow, served)
            yield next_update(bed, flow, served)


def killed(bed: Bed, flow: str, served: int) -> dict[str, Any]:
    """The trainer sends the checkpoint that the server does not serve."""
    trainer = bed.trainer(flow)
    trainer.ask("connect")
    quiet_span = watched()
    meter = LinkMeter(bed.host.data.interface)
    before = meter.bytes_sent()
    begun = time.monotonic()
    trainer.write_line(f"send {1 - served}")
    left = waited(lambda: meter.bytes_sent() - before > bed.model_bytes / 3, TRAINER_LIMIT_SECONDS)
    trainer.end()
    at = time.monotonic()
    span = Span(begun, watched().end)
    came = [[*times, span.end] for times in bed.came()]
    return {
        "row": "killed",
        "flow": flow,
        "aThirdHadLeft": left,
        "tokensAfterwards": sum(at < each for times in bed.came() for each in times),
        "longestGap": round(longest_gap(came, span), 3),
        "longestGapBefore": round(longest_gap(bed.came(), quiet_span), 3),
        "usualGap": round(usual_gap(bed.came(), span), 3),
        "paused": paused(bed),
        "answers": answered(bed, served),
    }


def watched() -> Span:
    """A time in which nothing is done, and streams are read."""
    begun = time.monotonic()
    time.sleep(WATCHED_SECONDS)
    return Span(begun, time.monotonic())


def within(call: Callable[[], str], limit_seconds: float = ASKED_SECONDS) -> str:
    """What it returns within the limit, or why it does not."""
    answer: Future[str] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except (OSError, RuntimeError, AssertionError) as failed:
            answer.set_result(f"fails: {str(failed).strip().splitlines()[-1]}")

    threading.Thread(target=run, daemon=True).start()
    return answer.result() if waited(answer.done, limit_seconds) else f"no answer in {limit_seconds:g} s"


def paused(bed: Bed) -> str:
    return within(lambda: str(json.loads(bed.server.get("/is_paused"))["is_paused"]))


def answered(bed: Bed, served: int) -> str:
    """What the server says of a prompt."""
    names = {0: "the new weights", 1: "the new weights", served: "the weights before"}

    def asked() -> str:
        words = bed.words()
        return next((names[number] for number in names if words == bed.expected[number]), "of neither checkpoint")

    return within(asked)


def next_update(bed: Bed, flow: str, served: int) -> dict[str, Any]:
    """A new trainer process sends what the killed one was sending."""
    trainer = bed.trainer(flow)
    begun = time.monotonic()

    def sent() -> str:
        trainer.ask("connect")
        trainer.ask(f"send {1 - served}")
        return "sent"

    came = within(sent, NEXT_SECONDS)
    seconds = time.monotonic() - begun
    trainer.end()
    return {
        "row": "next",
        "flow": flow,
        "came": came,
        "seconds": round(seconds, 2),
        "paused": paused(bed),
        "answers": answered(bed, served),
    }
