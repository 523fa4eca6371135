"""The tests that docs/testing.md names against mutations exist under those names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = "## Mutations that tests must catch"
ROWS_MIN = 53
JAVA_TEST = re.compile(r"`(\w+Test)\.(\w+)`")
PYTHON_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows() -> list[str]:
    section = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8").partition(HEAD)[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def sources(name: str) -> list[str]:
    folders = [ROOT / folder for folder in ("connector-java", "engine-hooks", "kvlayout", "python")]
    found = [path for folder in folders for path in folder.glob(f"**/{name}") if "target" not in path.parts]
    return [path.read_text(encoding="utf-8") for path in found]


def test_each_mutation_names_a_test() -> None:
    assert len(rows()) >= ROWS_MIN
    assert [row for row in rows() if not (JAVA_TEST.search(row) or PYTHON_TEST.search(row))] == []


def test_the_tests_are_there() -> None:
    text = "\n".join(rows())
    missing = [
        f"{name}.{method}"
        for name, method in JAVA_TEST.findall(text)
        if not any(f"void {method}(" in source for source in sources(f"{name}.java"))
    ]
    missing += [
        f"{name}::{function}"
        for name, function in PYTHON_TEST.findall(text)
        if not any(f"def {function}(" in source for source in sources(name))
    ]
    assert missing == []
