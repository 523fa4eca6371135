"""Writes kv_connector/metrics/table.py from docs/metrics.md.

From ``python``: ``python tests/metrics_table.py > kv_connector/metrics/table.py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
LINE_LENGTH_MAX = 120
ROW = re.compile(
    r"\| `kv_messenger_(?!jvm_|peer_|price_)(\w+)` \| (counter|gauge|histogram) \| [^|]* \| [^|]* \| (.+) \|"
)
"""Those of the JVM, of single peers and of sources are on the messenger's own page alone, and not among its stats."""
REASON = re.compile(r"\| `kv_messenger_(\w+)` \| `(\w+)` \| [^|]* \|")
BUCKETS = re.compile(r"Histograms have (\d+) buckets from ([\d.]+) s on, each twice as wide as the one before\.")


def metrics_table() -> str:
    lines = [
        '"""What each of the messenger\'s figures counts. Made from docs/metrics.md by tests/metrics_table.py."""',
        "",
        "from __future__ import annotations",
        "",
        "COUNTERS = {",
        *_entries("counter"),
        "}",
        "REASONS: dict[str, tuple[str, ...]] = {",
        *_reasons(),
        "}",
        '"""Of counters that are told apart by reason."""',
        "GAUGES = {",
        *_entries("gauge"),
        "}",
        "HISTOGRAMS = {",
        *_entries("histogram"),
        "}",
        _buckets(),
        '"""The upper bounds of all histograms\' buckets but the last, which has none."""',
    ]
    return "\n".join(lines) + "\n"


def _entries(kind: str) -> list[str]:
    rows = [found for line in PAGE.read_text().splitlines() if (found := ROW.fullmatch(line))]
    entries = [f'    "{row[1]}": "{row[3]}",' for row in rows if row[2] == kind]
    return [f"{entry}  # noqa: E501" if len(entry) > LINE_LENGTH_MAX else entry for entry in entries]


def _reasons() -> list[str]:
    reasons: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        if row := REASON.fullmatch(line):
            reasons.setdefault(row[1], []).append(row[2])
    return [
        line
        for name, labels in reasons.items()
        for line in (f'    "{name}": (', *(f'        "{label}",' for label in labels), "    ),")
    ]


def _buckets() -> str:
    bounds = BUCKETS.search(PAGE.read_text())
    assert bounds is not None, f"{PAGE} does not say which buckets histograms have"
    return f"BUCKET_BOUNDS_SECONDS = tuple({float(bounds[2])} * 2**index for index in range({bounds[1]}))"


if __name__ == "__main__":
    sys.stdout.write(metrics_table())
