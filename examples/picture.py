"""Draws one transfer of a demo as an SVG: the forward passes, when each layer left, and when the decoder was ready.

make pictures        runs the demo, and draws the transfer of its longest prompt into docs/pictures/transfer.svg
examples/picture.py FOLDER OUTPUT        draws from a demo's logs in FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from timeline import FetchTimeline, PrefillTimeline, fetches, prefills

WIDTH = 900
LEFT = 170
RIGHT = 30
TOP = 62
ROW = 24
BAR = 14
NARROWEST = 2.0
"""Pixels: a layer is sent in less time than a pixel stands for."""
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
class Axis:
    """Nanoseconds to pixels."""

    start_ns: int
    end_ns: int

    def x(self, at_ns: int) -> float:
        return LEFT + (at_ns - self.start_ns) * (WIDTH - LEFT - RIGHT) / (self.end_ns - self.start_ns)

    def length_ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


def picture(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    """The SVG of one transfer whose two sides were on one machine."""
    chunks = prefill.computed()
    layers = sorted({layer.layer for chunk in chunks for layer in chunk.layers})
    axis = Axis(
        start_ns=min(fetch.granted_ns, *(chunk.forward_start_ns for chunk in chunks)),
        end_ns=max(fetch.ready_ns, *(chunk.forward_end_ns for chunk in chunks)),
    )
    rows = 2 + len(layers)
    height = TOP + rows * ROW + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}\n</style>",
        f'<text class="title" x="10" y="20">{title(prefill, fetch)}</text>',
        f'<text x="10" y="40">{subtitle(prefill, fetch)}</text>',
        *grid(axis, height),
        *passes(prefill, axis),
        *sent(prefill, layers, axis),
        *waited(fetch, axis, 1 + len(layers)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def title(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    chunks = prefill.computed()
    moved = f"{chunks[-1].end_token} tokens, {fetch.length_bytes / 1e6:.1f} MB over {prefill.transport}"
    return f"{moved}: when each layer leaves"


def subtitle(prefill: PrefillTimeline, fetch: FetchTimeline) -> str:
    early = sum(chunk.left_early() for chunk in prefill.computed())
    count = sum(len(chunk.layers) for chunk in prefill.computed())
    ready_ms = (fetch.ready_ns - prefill.last_layer_ns()) / 1e6
    return (
        f"{early} of {count} layers left before the forward pass that computed them ended;"
        f" {ready_ms:.2f} ms from the last layer to a decoder that has it all"
    )


def grid(axis: Axis, height: int) -> Iterator[str]:
    step = next(step for step in GRID_MS if axis.length_ms() / step <= GRID_LINES_MAX or step == GRID_MS[-1])
    for tick in range(0, int(axis.length_ms()) + 1, step):
        x = axis.x(axis.start_ns + tick * 1_000_000)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 24}"/>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{tick} ms</text>'


def passes(prefill: PrefillTimeline, axis: Axis) -> Iterator[str]:
    yield label("prefiller: forward pass", 0)
    for chunk in prefill.computed():
        yield bar("pass", axis, (chunk.forward_start_ns, chunk.forward_end_ns), 0)


def sent(prefill: PrefillTimeline, layers: list[int], axis: Axis) -> Iterator[str]:
    for row, layer in enumerate(layers, 1):
        yield label(f"layer {layer} leaves", row)
        for chunk in prefill.computed():
            for times in chunk.layers:
                if times.layer == layer:
                    kind = "layer" if times.left_ns < chunk.forward_end_ns else "late"
                    yield bar(kind, axis, (times.readable_ns, times.left_ns), row)


def waited(fetch: FetchTimeline, axis: Axis, row: int) -> Iterator[str]:
    yield label("decoder: granted to ready", row)
    yield bar("fetch", axis, (fetch.granted_ns, fetch.ready_ns), row)


def label(text: str, row: int) -> str:
    return f'<text x="10" y="{TOP + row * ROW + BAR - 3}">{text}</text>'


def bar(kind: str, axis: Axis, between_ns: tuple[int, int], row: int) -> str:
    left = axis.x(between_ns[0])
    width = max(NARROWEST, axis.x(between_ns[1]) - left)
    return f'<rect class="{kind}" x="{left:.1f}" y="{TOP + row * ROW}" width="{width:.1f}" height="{BAR}"/>'


def longest(folder: Path) -> tuple[PrefillTimeline, FetchTimeline]:
    """The transfer of the longest prompt whose story both logs tell, with its layers."""
    sides = [
        (folder / f"{name}.log").read_text(encoding="utf-8", errors="replace") for name in ("prefiller", "decoder")
    ]
    sent_ones, fetched = prefills(sides[0]), fetches(sides[1])
    told = [name for name in sent_ones if name in fetched and sent_ones[name].computed()]
    if not told:
        raise SystemExit(
            f"the logs in {folder} tell of no transfer with its layers: run the demo, or set timelines to full"
        )
    name = max(told, key=lambda name: sent_ones[name].computed()[-1].end_token)
    return sent_ones[name], fetched[name]


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__)
        return 2
    output = Path(arguments[1])
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(picture(*longest(Path(arguments[0]))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
