"""The repository keeps the house rules that a machine can see."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from checks import checks

ROOT = Path(__file__).resolve().parents[2]
CHECKS = checks(ROOT)
RULES_THEMSELVES = ("e2e-tests/quick/",)  # they name what they forbid
STAMP = re.compile(
    r"# \d{4}: (?P<title>[^\n]+)\n\nDate: (?P<date>\d{4}-\d\d-\d\d) · "
    r"Status: (?P<status>accepted|superseded by \[\d{4}\]\([\w.-]+\)|not built)\n"
)


@pytest.fixture(scope="module")
def tree() -> dict[PurePosixPath, str]:
    """Every text file that is tracked or would be."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = {}
    for name in listed:
        if name.startswith(RULES_THEMSELVES) or not (ROOT / name).is_file():
            continue
        try:
            found[PurePosixPath(name)] = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@pytest.mark.parametrize("rule", list(CHECKS))
def test_tree_keeps_the_rule(tree: dict[PurePosixPath, str], rule: str) -> None:
    breaches = [breach for path, text in tree.items() for breach in CHECKS[rule](path, text)]
    assert not breaches, "\n".join(breaches)


def test_the_tree_was_looked_at(tree: dict[PurePosixPath, str]) -> None:
    assert {".java", ".py", ".md"} <= {path.suffix for path in tree}


def decisions(tree: dict[PurePosixPath, str]) -> list[PurePosixPath]:
    return [path for path in tree if str(path.parent) == "docs/decisions" and path.name != "README.md"]


def test_each_decision_has_a_number_of_its_own(tree: dict[PurePosixPath, str]) -> None:
    """A page is cited by its number, which stands in its name and in its heading."""
    pages = decisions(tree)
    numbers = [path.name.split("-")[0] for path in pages]
    assert pages, "no decision was looked at"
    assert sorted(set(numbers)) == sorted(numbers)
    assert all(tree[page].startswith(f"# {number}: ") for page, number in zip(pages, numbers, strict=True))


def test_each_decision_has_a_date_and_a_status_and_is_in_the_index(tree: dict[PurePosixPath, str]) -> None:
    index = tree[PurePosixPath("docs/decisions/README.md")]
    for page in decisions(tree):
        stamp = STAMP.match(tree[page])
        assert stamp, f"{page} has no line 'Date: 2026-01-31 · Status: accepted' under its title"
        row = f"]({page.name}) | {stamp['title']} | {stamp['date']} | {stamp['status']} |"
        assert row in index, f"the index has no row '{row}'"
