"""The tables of docs/models.md say what the tests show: their tests are there, and so are their models' rows."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest
from test_troubleshooting import missing

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
ROWS: Final = [line for line in PAGE.splitlines() if line.startswith("| ")]
TESTS: Final = (ROOT / "e2e-tests", ROOT / "python" / "tests", ROOT)
TEST_NAME: Final = re.compile(r"`([\w/]*test_\w+\.py)`")
WORLD: Final = re.compile(r"engine loop `(\w+)`")
REFUSED: Final = re.compile(r"refused[^|:]*: `([^`]+)`")
MODEL_NAMED: Final = re.compile(r"An? ([A-Z]\w*(?:-\w+)*(?: \d)?|gpt-oss)\b")
"""How the docstring of a tiny model begins, which names the model that it is one of."""


def tiny_models() -> dict[str, str]:
    """The model that each class of examples/make_model.py is a tiny one of, by the class."""
    tree = ast.parse((ROOT / "examples" / "make_model.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    named = {node.name: MODEL_NAMED.match(ast.get_docstring(node) or "") for node in classes}
    return {name: found[1] for name, found in named.items() if found}


def files_that_use(name: str) -> set[str]:
    files = (ROOT / "e2e-tests").glob("test_*.py")
    return {file.name for file in files if re.search(rf"\b{name}\b", file.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", sorted(set(TEST_NAME.findall(PAGE))))
def test_tests_that_the_page_names_are_there(name: str) -> None:
    assert any((folder / name).is_file() for folder in TESTS)


@pytest.mark.parametrize("world", sorted(set(WORLD.findall(PAGE))))
def test_worlds_that_the_page_names_are_run_by_the_engine_loop(world: str) -> None:
    kinds = (ROOT / "python" / "tests" / "engine_loop" / "kinds.py").read_text(encoding="utf-8")
    assert f'"{world}"' in kinds


@pytest.mark.parametrize("sentence", sorted(set(REFUSED.findall("\n".join(ROWS)))))
def test_refusals_that_the_page_quotes_are_raised_by_the_code(sentence: str) -> None:
    assert missing(sentence) == []


@pytest.mark.parametrize(("shape", "model"), sorted(tiny_models().items()))
def test_models_that_are_tested_have_a_row_that_names_their_test(shape: str, model: str) -> None:
    rows = [row for row in ROWS if re.search(rf"\b{model}\b", row)]
    named = {Path(name).name for row in rows for name in TEST_NAME.findall(row)}
    assert named & files_that_use(shape), f"no row with {model} names one of {sorted(files_that_use(shape))}"


def test_tables_are_found() -> None:
    assert len(tiny_models()) > 7
    assert len(REFUSED.findall("\n".join(ROWS))) > 5
