"""The modules of kv_connector import each other in one direction only, imports inside functions included; so do rooms.

A room is a folder or a file directly below kv_connector. An import under ``TYPE_CHECKING`` names a type only and is
left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[1]
PACKAGE = "kv_connector"
BOTTOM = frozenset({"_version", "exceptions"})
ENGINE_FREE = BOTTOM | {"configuration", "memory", "naming", "runtime", "metrics"}
ROOMS: Mapping[str, frozenset[str]] = {
    "_version": frozenset(),
    "exceptions": frozenset(),
    "configuration": BOTTOM,
    "memory": BOTTOM,
    "naming": BOTTOM,
    "runtime": BOTTOM | {"configuration", "memory"},
    "metrics": BOTTOM | {"runtime"},
    "pulls": BOTTOM | {"configuration", "runtime"},
    "weights": BOTTOM | {"configuration", "memory", "naming", "runtime"},
    "kv_connector_door": frozenset(),
    "vllm": ENGINE_FREE | {"pulls", "weights"},
    "sglang": ENGINE_FREE | {"pulls", "weights", "kv_connector_door"},
    "cli": ENGINE_FREE | {"weights", "vllm", "sglang"},
    "prepare": ENGINE_FREE,
    "__main__": frozenset({"cli"}),
    PACKAGE: ENGINE_FREE,
}
"""The rooms in order, each with the rooms it may import. ``kv_connector`` itself holds the public names."""


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


def _room(module: str) -> str:
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def between_rooms(arrows: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """The pairs of rooms of which the first imports the second."""
    rooms = {(_room(module), _room(imported)) for module, found in arrows.items() for imported in found}
    return {(importing, imported) for importing, imported in rooms if importing != imported}


def forbidden(arrows: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    return {(room, imported) for room, imported in between_rooms(arrows) if imported not in ROOMS[room]}


def test_rooms_import_only_what_stands_before_them() -> None:
    arrows = imports(sources())
    assert {_room(module) for module in arrows} == set(ROOMS)
    assert len(between_rooms(arrows)) > 30
    assert forbidden(arrows) == set()


def test_the_rooms_are_listed_in_their_order() -> None:
    before: set[str] = set()
    for room, allowed in ROOMS.items():
        assert allowed <= before, f"{room} may import what follows it: {allowed - before}"
        before.add(room)


def test_an_import_against_the_order_is_found() -> None:
    facade = f"{PACKAGE}.runtime.facade"
    upward = sources() | {f"{PACKAGE}.memory.memfd": f"def hidden():\n    from {facade} import Stats"}
    assert forbidden(imports(upward)) == {("memory", "runtime")}


def test_every_room_says_its_role() -> None:
    texts = sources()
    assert [room for room in ENGINE_FREE - BOTTOM if not ast.get_docstring(ast.parse(texts[f"{PACKAGE}.{room}"]))] == []
