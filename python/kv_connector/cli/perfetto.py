"""Timelines as trace events for ui.perfetto.dev and chrome://tracing. Pure.

Each log is a process, and each transfer in it a row, on which forward passes follow each other and layers and waits
overlap. The format is Chrome's Trace Event Format: X is a span on a row, b and e are a span that may overlap others, M
names a row; ``ts`` and ``dur`` are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kv_connector.cli.timelines import FetchTimeline, Timeline

Event = dict[str, Any]
NS_PER_US = 1000.0


def trace(logs: Mapping[str, Iterable[Timeline]]) -> dict[str, Any]:
    """The JSON object of a trace file, from the timelines of each log, by the log's name."""
    events: list[Event] = []
    for process, (name, found) in enumerate(logs.items(), start=1):
        events.append(_named("process_name", process, 0, name))
        for row, timeline in enumerate(found, start=1):
            events.append(_named("thread_name", process, row, timeline.transfer))
            events += _passes(timeline, process, row)
            events += _overlapping(timeline, process, row)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _passes(timeline: Timeline, process: int, row: int) -> Iterator[Event]:
    if isinstance(timeline, FetchTimeline):
        return
    for chunk in timeline.computed():
        tokens = f"{chunk.first_token} to {chunk.end_token}"
        yield {
            "name": "forward pass",
            "ph": "X",
            "pid": process,
            "tid": row,
            "ts": chunk.forward_start_ns / NS_PER_US,
            "dur": (chunk.forward_end_ns - chunk.forward_start_ns) / NS_PER_US,
            "args": {"tokens": tokens},
        }


def _overlapping(timeline: Timeline, process: int, row: int) -> Iterator[Event]:
    for number, (name, start_ns, end_ns) in enumerate(_spans(timeline)):
        if 0 < start_ns <= end_ns:
            shared = {"name": name, "cat": "kv", "id": f"{process}.{row}.{number}", "pid": process, "tid": row}
            yield {**shared, "ph": "b", "ts": start_ns / NS_PER_US, "args": {"transfer": timeline.transfer}}
            yield {**shared, "ph": "e", "ts": end_ns / NS_PER_US}


def _spans(timeline: Timeline) -> Iterator[tuple[str, int, int]]:
    if isinstance(timeline, FetchTimeline):
        answered_ns = timeline.question_ns + timeline.answer_ns
        yield "question", timeline.question_ns, answered_ns
        yield "no pages yet", answered_ns, timeline.asked_ns
        yield "pages granted", timeline.asked_ns, timeline.granted_ns
        yield "KV on its way", timeline.granted_ns, timeline.ready_ns
        return
    yield f"sent over {timeline.transport}", timeline.first_submitted_ns, timeline.last_left_ns
    for chunk in timeline.chunks:
        for layer in chunk.layers:
            yield f"layer {layer.layer}", layer.readable_ns, layer.left_ns


def _named(what: str, process: int, row: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}
