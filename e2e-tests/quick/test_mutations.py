"""The tests that docs/mutants.md names against mutations exist under those names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = "## Mutations that tests must catch"
ROWS_MIN = 53
JAVA_TEST = re.compile(r"`(\w+Test)\.(\w+)`")
PYTHON_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows() -> list[str]:
    section = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8").partition(HEAD)[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def all_tests() -> str:
    """Of every file, since a test may move to another one with what it holds."""
    folders = [
        ROOT / folder for folder in ("connector-java", "engine-hooks", "kvlayout", "spec-decode", "python/tests")
    ]
    found = [path for folder in folders for kind in ("*Test.java", "test_*.py") for path in folder.rglob(kind)]
    return "\n".join(path.read_text(encoding="utf-8") for path in found if "target" not in path.parts)


def test_each_mutation_names_a_test() -> None:
    assert len(rows()) >= ROWS_MIN
    assert [row for row in rows() if not (JAVA_TEST.search(row) or PYTHON_TEST.search(row))] == []


def test_the_tests_are_there() -> None:
    table, tests = "\n".join(rows()), all_tests()
    missing = [method for _, method in JAVA_TEST.findall(table) if f"void {method}(" not in tests]
    missing += [function for _, function in PYTHON_TEST.findall(table) if f"def {function}(" not in tests]
    assert missing == [], "docs/mutants.md names tests that are not there: name those that hold the same now"
