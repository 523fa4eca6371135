"""Draws one transfer as an SVG: forward passes, the sending of each layer, and when the decoder was ready. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kv_connector.cli.timelines import FetchTimeline, PrefillTimeline

WIDTH = 900
LEFT = 170
RIGHT = 30
TOP = 62
ROW = 24
BAR = 14
NARROWEST = 2.0
"""The minimum width, in pixels: a layer may be sent in less time than one pixel represents."""
GRID_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
GRID_LINES_MAX = 10
STYLE = """
  text { font: 12px sans-serif; fill: #24292f }
  .title { font-size: 14px; font-weight: bold }
  .grid { stroke: #d0d7de; stroke-width: 1 }
  .pass { fill: #afb8c1 }
  .layer { fill: #0969da }
  .late { fill: #bc4c00 }
  .fetch { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .grid { stroke: #30363d } .pass { fill: #484f58 }
    .layer { fill: #4493f8 } .late { fill: #db6d28 } .fetch { fill: #3fb950 }
  }"""


@dataclass(frozen=True)
class _Axis:
    """Maps nanoseconds to pixels."""

    start_ns: int
    end_ns: int

    def pixel(self, at_ns: int) -> float:
        """The x-coordinate of a time."""
        return LEFT + (at_ns - self.start_ns) * (WIDTH - LEFT - RIGHT) / (self.end_ns - self.start_ns)

    def length_ms(self) -> float:
        """The length of the drawn period, in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


def picture(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    """The SVG of one transfer whose two sides were on one machine."""
    chunks = prefill.computed()
    layers = sorted({layer.layer for chunk in chunks for layer in chunk.layers})
    start_ns = min(fetch.granted_ns, *(chunk.forward_start_ns for chunk in chunks))
    end_ns = max(fetch.ready_ns, *(chunk.forward_end_ns for chunk in chunks))
    axis = _Axis(start_ns, max(end_ns, start_ns + 1))
    rows = 2 + len(layers)
    height = TOP + rows * ROW + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}\n</style>",
        f'<text class="title" x="10" y="20">{_title(prefill, fetch)}</text>',
        f'<text x="10" y="40">{_subtitle(prefill, fetch)}</text>',
        *_grid(axis, height),
        *_passes(prefill, axis),
        *_sent(prefill, layers, axis),
        *_waited(fetch, axis, 1 + len(layers)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    chunks = prefill.computed()
    moved = f"{chunks[-1].end_token} tokens, {fetch.length_bytes / 1e6:.1f} MB over {prefill.transport}"
    return f"{moved}: when each layer leaves"


def _subtitle(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    early, count = prefill.left_early()
    return (
        f"{early} of {count} layers left before the forward pass that computed them ended;"
        f" {fetch.ready_ms_after(prefill):.2f} ms from the last layer to a decoder that has it all"
    )


def _grid(axis: _Axis, height: int) -> Iterator[str]:
    fitting = [step for step in GRID_MS if axis.length_ms() / step <= GRID_LINES_MAX]
    step = fitting[0] if fitting else 1 + int(axis.length_ms()) // GRID_LINES_MAX
    for tick in range(0, int(axis.length_ms()) + 1, step):
        x = axis.pixel(axis.start_ns + tick * 1_000_000)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 24}"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick} ms</text>'


def _passes(prefill: PrefillTimeline, axis: _Axis) -> Iterator[str]:
    yield _label("prefiller: forward pass", 0)
    for chunk in prefill.computed():
        yield _bar("pass", axis, (chunk.forward_start_ns, chunk.forward_end_ns), 0)


def _sent(prefill: PrefillTimeline, layers: list[int], axis: _Axis) -> Iterator[str]:
    for row, layer in enumerate(layers, 1):
        yield _label(f"layer {layer} leaves", row)
        for chunk in prefill.computed():
            for times in chunk.layers:
                if times.layer == layer:
                    kind = "layer" if times.left_ns < chunk.forward_end_ns else "late"
                    yield _bar(kind, axis, (times.readable_ns, times.left_ns), row)


def _waited(fetch: FetchTimeline, axis: _Axis, row: int) -> Iterator[str]:
    yield _label("decoder: granted to ready", row)
    yield _bar("fetch", axis, (fetch.granted_ns, fetch.ready_ns), row)


def _label(text: str, row: int) -> str:
    return f'<text x="10" y="{TOP + row * ROW + BAR - 3}">{text}</text>'


def _bar(kind: str, axis: _Axis, between_ns: tuple[int, int], row: int) -> str:
    left = axis.pixel(between_ns[0])
    width = max(NARROWEST, axis.pixel(between_ns[1]) - left)
    return f'<rect class="{kind}" x="{left:.1f}" y="{TOP + row * ROW}" width="{width:.1f}" height="{BAR}"/>'
