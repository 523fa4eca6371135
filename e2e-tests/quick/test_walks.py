"""The stations of the walks in docs/architecture.md are files or classes of today."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stations() -> set[str]:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = text.split("<!-- walks -->\n")[1].split("<!-- /walks -->")[0].splitlines()[2:]
    now = [row.rstrip().rstrip("|").rpartition("|")[2] for row in rows]
    return {name for cell in now for name in re.findall(r"`(\w+)`", cell)}


def declared() -> set[str]:
    java = {source.stem for source in ROOT.glob("*/src/main/java/**/*.java")}
    java |= {source.stem for source in ROOT.glob("connector-java/*/src/main/java/**/*.java")}
    modules = list((ROOT / "python" / "kv_connector").rglob("*.py"))
    classes = {
        name for source in modules for name in re.findall(r"^class (\w+)", source.read_text("utf-8"), re.MULTILINE)
    }
    return java | classes | {source.stem for source in modules}


def test_each_station_exists() -> None:
    assert len(stations()) > 30
    assert stations() <= declared()
