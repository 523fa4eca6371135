"""A dashboard as a page of line charts, drawn from what a Prometheus answers to its queries, without a Grafana.

Pure functions, but for the questions that they are given a way to ask.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dashboard import PANELS_A_ROW, Dashboard, Panel

WIDTH, HEIGHT = 440, 190
LEFT, BOTTOM, TOP = 62, 20, 8
COLOURS = ("#3b6fb6", "#d9822b", "#3f9a5b", "#b2436b", "#7a5bb0", "#5d8a99", "#a08a2c", "#c0504d")
LEGEND_MAX = 6
STYLE = (
    "body{font:13px system-ui,sans-serif;margin:1.2em;color:#222;background:#f5f5f5}h1{font-size:1.3em;margin:0 0 .4em}"
    "h2{font-size:1.05em;margin:1em 0 .4em}h3{font-size:.95em;margin:0 0 .3em;font-weight:600}"
    f".row{{display:grid;grid-template-columns:repeat({PANELS_A_ROW},{WIDTH + 20}px);gap:10px}}"
    ".panel{background:#fff;border:1px solid #ddd;padding:8px}.legend{color:#555;font-size:11px;min-height:2.4em}"
    "text{font-size:10px;fill:#666}"
)
SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "Bps": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "percentunit": ((0.01, "%"),),
    "cps": ((1.0, "/s"),),
    "short": ((1.0, ""),),
}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    legend: str
    points: Points


AskLines = Callable[[str, str], Sequence[Line]]
"""Gives the lines of a query, and a legend in which labels stand in double braces."""


def page(of: Dashboard, ask: AskLines) -> str:
    parts = [f'<!doctype html><meta charset="utf-8"><title>{of.title}</title><style>{STYLE}</style><h1>{of.title}</h1>']
    for title, panels in of.rows.items():
        parts.append(f'<h2>{html.escape(title)}</h2><div class="row">')
        parts += [_panel(panel, ask) for panel in panels]
        parts.append("</div>")
    return "\n".join(parts) + "\n"


def height_of(of: Dashboard) -> int:
    """Of the page, in pixels: enough, and little more."""
    lines = sum(-(-len(panels) // PANELS_A_ROW) for panels in of.rows.values())
    return 70 + 40 * len(of.rows) + lines * (HEIGHT + 85)


def width_of() -> int:
    return PANELS_A_ROW * (WIDTH + 30) + 40


def _panel(panel: Panel, ask: AskLines) -> str:
    lines = [line for legend, query in panel.queries.items() for line in ask(query, legend)]
    drawn = [(line, COLOURS[index % len(COLOURS)]) for index, line in enumerate(lines)]
    legends = [
        f'<span style="color:{colour}">■</span> {html.escape(line.legend)}' for line, colour in drawn[:LEGEND_MAX]
    ]
    if len(drawn) > LEGEND_MAX:
        legends.append(f"and {len(drawn) - LEGEND_MAX} more")
    return (
        f'<div class="panel"><h3>{html.escape(panel.title)}</h3>{_chart(drawn, panel.unit)}'
        f'<div class="legend">{" &nbsp; ".join(legends)}</div></div>'
    )


def _chart(drawn: Sequence[tuple[Line, str]], unit: str) -> str:
    known = [(at, value) for line, _ in drawn for at, value in line.points if math.isfinite(value)]
    if not known:
        return f'<svg width="{WIDTH}" height="{HEIGHT}"><text x="{LEFT}" y="{HEIGHT / 2}">no data</text></svg>'
    begun, ended = min(at for at, _ in known), max(at for at, _ in known)
    top = max(value for _, value in known) or 1.0
    factor, unit_name = next((scale for scale in SCALES[unit] if top >= scale[0]), SCALES[unit][-1])

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - 6) * (at - begun) / max(1.0, ended - begun)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top

    parts = [f'<svg width="{WIDTH}" height="{HEIGHT}">']
    for share in (0.0, 0.5, 1.0):
        height = y(share * top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{height:.1f}" y2="{height:.1f}" stroke="#e5e5e5"/>')
        label = f"{share * top / factor:.3g} {unit_name}"
        parts.append(f'<text x="{LEFT - 6}" y="{height + 3:.1f}" text-anchor="end">{label}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 5}">0 s</text>')
    parts.append(f'<text x="{WIDTH - 6}" y="{HEIGHT - 5}" text-anchor="end">{ended - begun:.0f} s</text>')
    for line, colour in drawn:
        parts += [
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(piece)}"/>'
            for piece in _pieces([(x(at), y(value) if math.isfinite(value) else math.nan) for at, value in line.points])
        ]
    return "".join(parts) + "</svg>"


def _pieces(points: Points) -> list[list[str]]:
    """A line is broken where nothing is known."""
    pieces: list[list[str]] = [[]]
    for across, down in points:
        if math.isnan(down):
            pieces.append([])
        else:
            pieces[-1].append(f"{across:.1f},{down:.1f}")
    return [piece for piece in pieces if piece]
