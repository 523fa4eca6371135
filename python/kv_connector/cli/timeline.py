"""``kv-messenger timeline``: the transfers in engines' logs as a table, a picture and a trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from kv_connector.cli.perfetto import trace
from kv_connector.cli.timelines import FetchTimeline, PrefillTimeline, Timeline, timelines
from kv_connector.cli.transfer_picture import picture

NAME_LENGTH_MAX = 36
"""The length of a transfer's name in the table: routers make longer names, which differ at the end."""
HEADER = (
    "transfer",
    "side",
    "transport",
    "tokens",
    "MB",
    "layers early",
    "sending ms",
    "exposed ms",
    "wait ms",
)
HAND_OVER_HEADER = ("hand-over", "seen to posted ms", "to left ms", "to counted ms", "to polled ms", "all ms")
UNKNOWN = "-"


@dataclass(frozen=True)
class Wanted:
    """The files to write besides the table; None = not written."""

    svg: Path | None = None
    transfer: str = ""
    """The transfer to draw; "" = that of the longest prompt."""
    perfetto: Path | None = None


def report(
    logs: Sequence[Path], wanted: Wanted, say: Callable[[str], object], complain: Callable[[str], object]
) -> int:
    """Prints the table and writes the files; returns 1, with a message, if a log is unreadable or has no transfer."""
    try:
        found = {str(log): list(timelines(log.read_text(encoding="utf-8", errors="replace"))) for log in logs}
    except (OSError, ValueError) as missing:  # a ValueError for a name that no file can have
        complain(f"{missing}: name an engine's log\n")
        return 1
    rows = [row(timeline) for of_log in found.values() for timeline in of_log]
    if not rows:
        complain(
            f"{' and '.join(found)} has no line with 'kv_messenger timeline', expected an engine's log at level INFO;"
            ' with the option timelines "off" there is none\n'
        )
        return 1
    for line in table([HEADER, *rows], names=3):
        say(f"{line}\n")
    hand_overs = list(hand_over_rows([timeline for of_log in found.values() for timeline in of_log]))
    for line in table([HAND_OVER_HEADER, *hand_overs], names=1) if hand_overs else ():
        say(f"{line}\n")
    try:
        write(found, wanted)
    except (OSError, LookupError, ValueError) as refused:  # a ValueError for a name that no file can have
        complain(f"{refused}\n")
        return 1
    return 0


def write(found: Mapping[str, Sequence[Timeline]], wanted: Wanted) -> None:
    """Writes the files; raises LookupError with a message if there is nothing to draw."""
    if wanted.perfetto is not None:
        wanted.perfetto.write_text(json.dumps(trace(found)), encoding="utf-8")
    if wanted.svg is not None:
        sent, fetched = drawn([timeline for of_log in found.values() for timeline in of_log], wanted.transfer)
        wanted.svg.parent.mkdir(parents=True, exist_ok=True)
        wanted.svg.write_text(picture(sent, fetched), encoding="utf-8")


def hand_over_rows(found: Sequence[Timeline]) -> Iterator[tuple[str, ...]]:
    """The parts of the time from a transfer's last layer to the engine's poll, for transfers with full timelines.

    Over shm the receiver may count pages before the writer has noticed their completion: the time from left to counted
    is then negative.
    """
    sent = {timeline.transfer: timeline for timeline in found if isinstance(timeline, PrefillTimeline)}
    for fetched in found:
        if not isinstance(fetched, FetchTimeline) or not fetched.polled_ns:
            continue
        prefill = sent.get(fetched.transfer)
        if prefill is None or not any(chunk.layers for chunk in prefill.chunks):
            continue
        last = prefill.last_layer()
        points = (last.readable_ns, last.submitted_ns, prefill.last_left_ns, fetched.ready_ns, fetched.polled_ns)
        spans = [later - before for before, later in pairwise(points)]
        yield (short(fetched.transfer), *(f"{span / 1e6:.2f}" for span in (*spans, points[-1] - points[0])))


def drawn(found: Sequence[Timeline], transfer: str) -> tuple[PrefillTimeline, FetchTimeline]:
    """Both sides of the transfer with this name, or with the longest prompt; raises LookupError with a message."""
    fetched = {timeline.transfer: timeline for timeline in found if isinstance(timeline, FetchTimeline)}
    sent = [
        timeline
        for timeline in found
        if isinstance(timeline, PrefillTimeline) and timeline.computed() and timeline.transfer in fetched
    ]
    chosen = [timeline for timeline in sent if transfer in ("", timeline.transfer)]
    if not chosen:
        named = f"transfer {transfer!r}" if transfer else "a transfer"
        raise LookupError(
            f"the logs do not tell of both sides of {named} with its layers: give the logs of a prefiller and of a"
            ' decoder of one machine, whose option timelines is "full"'
        )
    longest = max(chosen, key=lambda timeline: timeline.computed()[-1].end_token)
    return longest, fetched[longest.transfer]


def row(timeline: Timeline) -> tuple[str, ...]:
    """A row of the table."""
    name = short(timeline.transfer)
    moved = f"{timeline.length_bytes / 1e6:.1f}"
    if isinstance(timeline, FetchTimeline):
        wait = between_ms(timeline.question_ns or timeline.asked_ns, timeline.ready_ns)
        side = "asker" if timeline.question_ns else "decoder"
        return (name, side, UNKNOWN, UNKNOWN, moved, UNKNOWN, UNKNOWN, UNKNOWN, wait)
    return (
        name,
        "prefiller",
        timeline.transport,
        str(timeline.prompt_tokens),
        moved,
        f"{timeline.layers_sent_early}/{timeline.layers_sent}",
        between_ms(timeline.first_submitted_ns, timeline.last_left_ns),
        between_ms(max(timeline.forward_end_ns, timeline.grant_received_ns), timeline.last_left_ns),
        UNKNOWN,
    )


def short(name: str) -> str:
    """Shortens the name of a transfer for a table, without what a terminal would obey: clients name their requests."""
    name = "".join(each if each.isprintable() else "?" for each in name)
    return name if len(name) <= NAME_LENGTH_MAX else f"…{name[1 - NAME_LENGTH_MAX :]}"


def between_ms(start_ns: int, end_ns: int) -> str:
    """The time between two points, at least 0: KV that was sent before its pass ended has no exposed time."""
    return f"{max(0, end_ns - start_ns) / 1e6:.2f}" if start_ns and end_ns else UNKNOWN


def table(rows: Sequence[Sequence[str]], names: int) -> Iterator[str]:
    """Aligned lines: the first ``names`` columns are left-aligned, the numbers after them right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        aligned = [
            cell.ljust(width) if place < names else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        yield "  ".join(aligned).rstrip()
