"""The modules of kv_connector import each other in one direction only, imports inside functions included.

An import under ``TYPE_CHECKING`` names a type only and is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
PACKAGE = "kv_connector"


def imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules among these that each module imports."""
    return {name: _imported(ast.parse(text), modules) - {name} for name, text in modules.items()}


def _imported(tree: ast.Module, modules: Mapping[str, str]) -> set[str]:
    found = set()
    types_only = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    skipped = {inner for node in types_only for inner in ast.walk(node)}
    for node in set(ast.walk(tree)) - skipped:
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in inner}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
    return found


def sources() -> dict[str, str]:
    files = [*(PYTHON / PACKAGE).rglob("*.py"), PYTHON / "kv_connector_door.py"]
    named = {".".join(file.relative_to(PYTHON).with_suffix("").parts): file for file in files}
    return {name.removesuffix(".__init__"): file.read_text(encoding="utf-8") for name, file in named.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    arrows = imports(sources())
    for package in (PACKAGE, f"{PACKAGE}.vllm", f"{PACKAGE}.sglang"):  # imported for their names
        arrows[package] = set()
    assert sum(map(len, arrows.values())) > 300
    TopologicalSorter(arrows).prepare()


def test_a_circle_is_found_although_a_function_hides_it() -> None:
    circle = imports({"p.a": "from p.b import x", "p.b": "def f():\n    from p.a import y", "p": ""})
    with pytest.raises(CycleError):
        TopologicalSorter(circle).prepare()
