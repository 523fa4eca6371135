"""Draws the module map of docs/architecture.md from the imports of the Java sources, and finds arrows that go back."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN = "<!-- module map: written by e2e-tests/quick/module_map.py -->"
END = "<!-- end of the module map -->"
PREFIX = "io.kvmessenger."

# Each production module, and the modules that its packages may import. An arrow to any other module goes back.
MODULES = {
    "kvlayout": (),
    "specdecode": ("kvlayout",),
    "hooks": (),
    "bindings": (),
    "foreign": ("bindings",),
    "transfer": ("foreign",),
    "messenger": ("kvlayout", "specdecode", "transfer"),
    "weights": ("transfer", "messenger"),
    "connector": ("kvlayout", "specdecode", "hooks", "foreign", "transfer", "messenger"),
}
SOURCES = (
    "kvlayout",
    "spec-decode",
    "engine-hooks",
    "connector-java/bindings",
    "connector-java/foreign",
    "connector-java/transfer",
    "connector-java/messenger",
    "connector-java/weights",
    "connector-java/connector",
)
PACKAGE = re.compile(r"^package io\.kvmessenger\.([\w.]+);", re.MULTILINE)
IMPORT = re.compile(r"^import (?:static )?io\.kvmessenger\.([a-z][a-z0-9_.]*)\.[A-Z]", re.MULTILINE)

Arrows = Mapping[str, set[str]]


def arrows_of(sources: Iterable[str]) -> dict[str, set[str]]:
    """Each package, and the packages that its files import."""
    arrows: dict[str, set[str]] = {}
    for text in sources:
        package = PACKAGE.search(text)
        if package is not None:
            imports = arrows.setdefault(package.group(1), set())
            imports |= set(IMPORT.findall(text)) - {package.group(1)}
    return arrows


def production_sources(root: Path) -> list[str]:
    files = [file for module in SOURCES for file in sorted((root / module / "src/main/java").rglob("*.java"))]
    return [file.read_text(encoding="utf-8") for file in files]


def faults(arrows: Arrows) -> list[str]:
    """Arrows that go back to a module above, and a cycle of packages; empty when there are none."""
    found = []
    for package, targets in sorted(arrows.items()):
        module = module_of(package)
        may_know = (module, *MODULES[module])
        found += [
            f"{package} imports {target}, expected imports of {', '.join(may_know)} only"
            for target in sorted(targets)
            if module_of(target) not in may_know
        ]
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as cycle:
        found.append("packages import each other in a cycle: " + " <- ".join(cycle.args[1]))
    return found


def module_of(package: str) -> str:
    return package.partition(".")[0]


def reduced(arrows: Arrows) -> dict[str, set[str]]:
    """Without the arrows that follow from two others."""

    def reaches(package: str) -> set[str]:
        direct = arrows.get(package, set())
        return direct.union(*(reaches(target) for target in direct))

    return {
        package: targets - set().union(*(reaches(target) for target in targets)) for package, targets in arrows.items()
    }


def mermaid(arrows: Arrows) -> str:
    lines = ["```mermaid", "flowchart TD"]
    for module in reversed(MODULES):
        lines.append(f"  subgraph module_{module}[{module}]")
        lines += [f"    {node(package)}[{package}]" for package in sorted(arrows) if module_of(package) == module]
        lines.append("  end")
    for package, targets in sorted(reduced(arrows).items()):
        lines += [f"  {node(package)} --> {node(target)}" for target in sorted(targets)]
    return "\n".join([*lines, "```"])


def node(package: str) -> str:
    return package.replace(".", "_")


def section(arrows: Arrows) -> str:
    legend = (
        "An arrow leads from a package to one that it imports; arrows that follow from others are left out. The house\n"
        "rules fail if an arrow leads to a module that is not allowed or closes a cycle, or if this picture is stale."
    )
    return f"{BEGIN}\n\n{mermaid(arrows)}\n\n{legend}\n\n{END}"


def with_map(page: str, arrows: Arrows) -> str:
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines '{BEGIN}' and '{END}': they say where the map stands")
    return before + section(arrows) + after


def main() -> None:
    arrows = arrows_of(production_sources(ROOT))
    if found := faults(arrows):
        sys.exit("\n".join(found))
    PAGE.write_text(with_map(PAGE.read_text(encoding="utf-8"), arrows), encoding="utf-8")


if __name__ == "__main__":
    main()
