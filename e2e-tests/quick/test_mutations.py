"""The tests that docs/mutants.md and docs/faults-elsewhere.md name exist under those names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAD = "## Mutations that tests must catch"
ROWS_MIN = 53
FAULTS = ROOT / "docs" / "faults-elsewhere.md"
FAULTS_MIN = 17
JAVA_TEST = re.compile(r"`(\w+Test)\.(\w+)`")
PYTHON_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


def rows() -> list[str]:
    section = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8").partition(HEAD)[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def all_tests() -> str:
    """Of every file, since a test may move to another one with what it holds."""
    folders = [
        ROOT / folder
        for folder in ("connector-java", "engine-hooks", "kvlayout", "spec-decode", "python/tests", "e2e-tests")
    ]
    found = [path for folder in folders for kind in ("*Test.java", "test_*.py") for path in folder.rglob(kind)]
    return "\n".join(path.read_text(encoding="utf-8") for path in found if "target" not in path.parts)


def test_each_mutation_names_a_test() -> None:
    assert len(rows()) >= ROWS_MIN
    assert [row for row in rows() if not (JAVA_TEST.search(row) or PYTHON_TEST.search(row))] == []


def test_the_tests_are_there() -> None:
    missing = absent_from("\n".join(rows()))
    assert missing == [], "docs/mutants.md names tests that are not there: name those that hold the same now"


def test_the_tests_against_faults_elsewhere_are_there() -> None:
    named = [line for line in FAULTS.read_text(encoding="utf-8").splitlines() if re.match(r"\| (?!there )\w", line)]
    assert len(named) >= FAULTS_MIN
    assert [row for row in named if not (JAVA_TEST.search(row) or PYTHON_TEST.search(row))] == []
    assert absent_from("\n".join(named)) == [], f"{FAULTS.name} names tests that are not there"


def absent_from(table: str) -> list[str]:
    tests = all_tests()
    missing = [method for _, method in JAVA_TEST.findall(table) if f"void {method}(" not in tests]
    return missing + [function for _, function in PYTHON_TEST.findall(table) if f"def {function}(" not in tests]
