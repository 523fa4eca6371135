"""Computes waits, in milliseconds, from the stamps of engines and the times of streamed answers. Pure."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STAMP = re.compile(r"stopwatch (\w+) at_ns=(\d+) requests=(\S+)")
NAME = re.compile(r"race-\d+")
"""The name of a request, inside the id that vLLM derives from its X-Request-Id."""


@dataclass(frozen=True)
class Streamed:
    """One answer, with the times at which its first leg was sent and each of its parts arrived."""

    request: str
    sent_ns: int
    parts_ns: Sequence[int]
    words: Sequence[str]

    @property
    def first_token_ms(self) -> float:
        return (self.parts_ns[0] - self.sent_ns) / 1e6

    @property
    def gaps_ms(self) -> list[float]:
        return [(later - before) / 1e6 for before, later in zip(self.parts_ns, self.parts_ns[1:], strict=False)]


def stamps(log: str, what: str) -> dict[str, int]:
    """The last stamp of each request, by its name in the race; other requests are ignored."""
    found = {}
    for kind, at_ns, ids in STAMP.findall(log):
        for name in NAME.findall(ids) if kind == what else ():
            found[name] = int(at_ns)
    return found


def waits_ms(prefiller_log: str, decoder_log: str, until: str = "ready") -> dict[str, float]:
    """By request, the time from the end of its last prefill pass until its decoder's scheduler could decode it."""
    ended, ready = stamps(prefiller_log, "forward_end"), stamps(decoder_log, until)
    return {name: (at_ns - ended[name]) / 1e6 for name, at_ns in ready.items() if name in ended}


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile, which is one of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(values), 2), "p99": round(percentile(values, 0.99), 2)}


def hidden_share(waited_ms: float, length_bytes: int, bytes_per_second: float) -> float:
    """The fraction of the link's time for these bytes that had passed when the last layer was computed.

    Below 0 if the wait is longer than the whole transfer needs.
    """
    return round(1 - waited_ms / (length_bytes / bytes_per_second * 1e3), 3)
