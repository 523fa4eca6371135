"""Makes kv_connector/_metrics.py from docs/metrics.md: ``python tests/metrics_table.py > kv_connector/_metrics.py``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
LINE_LENGTH_MAX = 120
ROW = re.compile(r"\| `kv_messenger_(?!jvm_)(\w+)` \| (counter|gauge) \| [^|]* \| (.+) \|")
"""Those of the JVM are on the messenger's own page alone, and not among its stats."""


def metrics_table() -> str:
    lines = [
        '"""What each of the messenger\'s figures counts. Made from docs/metrics.md by tests/metrics_table.py."""',
        "",
        "from __future__ import annotations",
        "",
        "COUNTERS = {",
        *_entries("counter"),
        "}",
        "GAUGES = {",
        *_entries("gauge"),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _entries(kind: str) -> list[str]:
    rows = [found for line in PAGE.read_text().splitlines() if (found := ROW.fullmatch(line))]
    entries = [f'    "{row[1]}": "{row[3]}",' for row in rows if row[2] == kind]
    return [f"{entry}  # noqa: E501" if len(entry) > LINE_LENGTH_MAX else entry for entry in entries]


if __name__ == "__main__":
    sys.stdout.write(metrics_table())
