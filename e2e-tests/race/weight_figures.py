"""What the race of weights computes: gaps between tokens, bytes on a link, and the table of a run."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TX_FIELD = 8
"""Of an interface's line in /proc/net/dev, behind its name."""
HEADER = (
    *(
        "flow",
        "update",
        "longest gap s",
        "worst s",
        "without s",
        "usual s",
        "load s",
        "gap - load s",
        "anew s",
        "whole s",
        "landed s",
    ),
    *("bytes / model", "on the link MB/s", "kvperf MB/s", "answers", "under way"),
)


@dataclass(frozen=True)
class Span:
    """From one time to another, of the machine's monotonic clock."""

    begin: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def meets(self, other: Span) -> bool:
        return self.begin < other.end and other.begin < self.end


@dataclass(frozen=True)
class Update:
    """What was seen of one update."""

    flow: str
    number: int
    """From 0 on, of this flow's updates."""
    longest_gap: float
    longest_before: float
    """Of a time without an update."""
    usual_gap: float
    load: float
    """For which the slowest rank's worker was in the calls that load."""
    anew: float
    """What the server needs for as many tokens of a prompt as were under way when it loaded, at most."""
    whole: float
    landed: float | None
    """From the call of the sender, or of a save, until all bytes are there; None where this is not seen apart."""
    link_bytes: int
    link_seconds: float
    """In which the link was busy."""
    kvperf_rate: float
    """Bytes a second that kvperf moved over the same link just before, with clients reading too; 0.0 without it."""
    right: bool
    whole_answers: bool
    """Whether each token of the answers under way is what one checkpoint says after those before it."""


def spans(times: Sequence[float]) -> list[Span]:
    """Between each token and the next one."""
    return [Span(*pair) for pair in itertools.pairwise(times)]


def longest_gap(streams: Sequence[Sequence[float]], within: Span) -> float:
    """The longest time without a token of any one stream that meets the span."""
    return max((gap.seconds for times in streams for gap in spans(times) if gap.meets(within)), default=0.0)


def usual_gap(streams: Sequence[Sequence[float]], apart_from: Span) -> float:
    """The median time between tokens outside of the span."""
    seconds = [gap.seconds for times in streams for gap in spans(times) if not gap.meets(apart_from)]
    return statistics.median(seconds) if seconds else 0.0


def under_way(times: Sequence[float], begun_at: Sequence[int], at: float) -> int:
    """The tokens that one stream's answer had at a time."""
    come = sum(each <= at for each in times)
    return come - max((begun for begun in begun_at if begun <= come), default=0)


def answer_under_way(times: Sequence[float], begun_at: Sequence[int], at: float) -> int:
    """The number of one stream's answer that had the last token at a time."""
    come = sum(each <= at for each in times)
    return max((number for number, begun in enumerate(begun_at) if begun < come), default=0)


def sent_bytes(text: str, interface: str) -> int:
    """What an interface has sent, by the text of /proc/net/dev."""
    for line in text.splitlines():
        name, colon, counts = line.strip().partition(":")
        if colon and name == interface:
            return int(counts.split()[TX_FIELD])
    raise KeyError(f"no interface {interface} in /proc/net/dev")


def busy_seconds(samples: Sequence[tuple[float, int]]) -> float:
    """From the first to the last change that matters: between 1 % and 99 % of all bytes, for what these took."""
    if not samples:
        return 0.0
    first, last = samples[0][1], samples[-1][1]
    low, high = first + 0.01 * (last - first), first + 0.99 * (last - first)
    begun = next((at for at, count in samples if count > low), samples[0][0])
    ended = next((at for at, count in samples if count >= high), samples[-1][0])
    return (ended - begun) / 0.98


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def flows_of(updates: Sequence[Update]) -> list[str]:
    return list(dict.fromkeys(each.flow for each in updates))


def rows(updates: Sequence[Update], model_bytes: int) -> Iterator[list[str]]:
    """The first update of each flow, and the medians of its later ones, with the worst of their gaps."""
    yield list(HEADER)
    for flow in flows_of(updates):
        own = [each for each in updates if each.flow == flow]
        for name, some in (("first", own[:1]), (f"{len(own) - 1} later", own[1:])):
            if some:
                yield [flow, name, *row(some, model_bytes)]


def row(some: Sequence[Update], model_bytes: int) -> list[str]:
    landed = [each.landed for each in some if each.landed is not None]
    rates = [each.link_bytes / each.link_seconds / 1e6 for each in some if each.link_seconds > 0]
    bytes_share = median([each.link_bytes / model_bytes for each in some])
    return [
        f"{median([each.longest_gap for each in some]):.3f}",
        f"{max(each.longest_gap for each in some):.3f}",
        f"{median([each.longest_before for each in some]):.3f}",
        f"{median([each.usual_gap for each in some]):.3f}",
        f"{median([each.load for each in some]):.3f}",
        f"{median([each.longest_gap - each.load for each in some]):+.3f}",
        f"{median([each.anew for each in some]):.3f}",
        f"{median([each.whole for each in some]):.2f}",
        f"{median(landed):.2f}" if landed else "-",
        f"{bytes_share:.3f}",
        f"{median(rates):.1f}" if rates and bytes_share > 0.5 else "-",
        f"{median([each.kvperf_rate for each in some]) / 1e6:.1f}" if some[0].kvperf_rate else "-",
        "right" if all(each.right for each in some) else "WRONG",
        "right" if all(each.whole_answers for each in some) else "of neither",
    ]


def bounds(
    updates: Sequence[Update], model_bytes: int, ours: str, broadcast: str
) -> Iterator[tuple[str, float, float]]:
    """What was to be shown of our flow: the sentence, what was seen, and what it was to be at most."""
    own = [each for each in updates if each.flow == ours]
    rival = [each for each in updates if each.flow == broadcast]
    if not own:
        return
    beyond = [each.longest_gap - each.load for each in own]
    yield "longest gap - load of the worst update, s", max(beyond), 0.1
    yield "longest gap - load of the median update, s", median(beyond), 0.1
    without = [each.longest_gap - each.load - each.anew for each in own]
    yield "the same without tokens computed anew, s", median(without), 0.1
    if rival:
        gaps = [median([each.longest_gap for each in some]) for some in (own, rival)]
        yield "median longest gap / the broadcast flow's", gaps[0] / gaps[1], 0.2
    yield "bytes of a host / model", max(each.link_bytes for each in own) / model_bytes, 1.01
    if own[1:]:
        yield "first update / median later one", own[0].whole / median([each.whole for each in own[1:]]), 1.3
    landed = [each.kvperf_rate * each.landed / model_bytes for each in own if each.landed is not None]
    yield "kvperf's rate / rate from call to landed", median(landed), 1 / 0.9
    on_link = [each.kvperf_rate * each.link_seconds / model_bytes for each in own]
    yield "kvperf's rate / rate on the link", median(on_link), 1 / 0.9


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
