"""What a text imports of kv_connector exists: programs in strings, pages and scripts, which no type checker reads."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "kv_connector"
IMPORT = re.compile(r"^[\s>#`\"']*from (kv_connector(?:\.\w+)*) import (\((?:[^)]*)\)|[^\n\"#;]+)", re.MULTILINE)
PLANTED = ("test_checks.py", "test_named_modules.py")
"""Tests with examples of what does not exist."""
ENDINGS = (".py", ".md", ".sh", ".java", ".yaml", ".toml", ".ipynb", "Makefile")


def sources() -> dict[str, set[str]]:
    """By module: the names that it binds, its submodules among them."""
    found: dict[str, set[str]] = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom | ast.Import)
            for alias in node.names
        }
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        found.setdefault(module, set()).update(names)
    for module in list(found):
        parent, _, name = module.rpartition(".")
        found.setdefault(parent, set()).add(name)
    return found


def missing(text: str, known: dict[str, set[str]]) -> list[str]:
    wrong = []
    for module, listed in IMPORT.findall(text):
        names = [part.split(" as ")[0].strip() for part in listed.strip("()").replace("\\n", ",").split(",")]
        if module not in known:
            wrong.append(module)
        else:
            wrong += [f"{module}.{name}" for name in names if re.fullmatch(r"\w+", name) and name not in known[module]]
    return wrong


def test_each_named_module_and_name_exists() -> None:
    known = sources()
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = [ROOT / name for name in listed if name.endswith(ENDINGS)]
    wrong = {
        str(file.relative_to(ROOT)): found
        for file in files
        if file.exists() and file.name not in PLANTED and (found := missing(file.read_text("utf-8"), known))
    }
    assert wrong == {}


def test_a_name_that_is_gone_is_found_in_a_program_within_a_string() -> None:
    known = {"kv_connector": {"cli", "Messenger"}, "kv_connector.cli": {"ping"}}
    assert missing('ASK = """\nfrom kv_connector.cli import ping, gone_options\n"""', known) == [
        "kv_connector.cli.gone_options"
    ]
    assert missing("    from kv_connector.gone import x", known) == ["kv_connector.gone"]
    assert missing("from kv_connector import (\n    Messenger,\n    Gone,\n)", known) == ["kv_connector.Gone"]
    assert missing("from kv_connector.cli import ping as p", known) == []
