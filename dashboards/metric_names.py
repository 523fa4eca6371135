"""The names under which figures stand on a messenger's page, from docs/metrics.md, which is made from the enum."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(kv_messenger_\w+)` \| (counter|gauge|histogram) \| [^|]* \| [^|]* \| (.+) \|")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str
    sentence: str

    def exposed(self) -> tuple[str, ...]:
        """Its names on the page."""
        return tuple(f"{self.name}{suffix}" for suffix in SUFFIXES[self.kind])


def metrics() -> dict[str, Metric]:
    """All of them, by the names under which they are exposed."""
    rows = [ROW.fullmatch(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    known = [Metric(row[1], row[2], row[3]) for row in rows if row]
    return {name: metric for metric in known for name in metric.exposed()}


def names_in(query: str) -> set[str]:
    """The messenger's figures that a query reads."""
    return set(re.findall(r"\bkv_messenger_\w+", query))
