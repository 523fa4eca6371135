"""Names that Python code declares, and those of them that no code uses."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""The words of a name in snake_case, CamelCase or capitals."""
SPEECH: Final = frozenset({"said", "tell", "telling", "tells", "told"})
NAME_IN_TEXT: Final = re.compile(r"[\w.]+")
"""A string that is a name as a whole is a use of it: ``getattr``, ``__all__`` and lists of hooks have such."""


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that one node declares: of a definition, an argument, an assignment, an attribute, or an import."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
            yield name
        case _:
            return


def names_of_speech(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each declaration with a word of speech in its name."""
    for node in ast.walk(ast.parse(text)):
        for name in bound_names(node):
            if has_speech(name):
                yield getattr(node, "lineno", 0), name


def has_speech(name: str) -> bool:
    """Whether one of the words in the name is a word of speech."""
    return not SPEECH.isdisjoint(word.lower() for word in WORDS.findall(name))


@dataclass(frozen=True, slots=True)
class Declaration:
    """A function, class, constant, method or field of a module or class, with the lines of its definition."""

    path: PurePosixPath
    owner: str
    """The module's or the class's name."""
    name: str
    lines: range

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


def declarations(path: PurePosixPath, text: str) -> Iterator[Declaration]:
    """All but names with two underscores on each side, which Python uses, and what a block for type checkers holds."""
    return _declared(path, path.stem, ast.parse(text).body)


def _declared(path: PurePosixPath, owner: str, body: Iterable[ast.stmt]) -> Iterator[Declaration]:
    for node in body:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        match node:
            case ast.ClassDef():
                names = [node.name]
                yield from _declared(path, node.name, node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names = [node.name]
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from _declared(path, owner, [*node.body, *node.orelse])
                continue
            case _:
                continue
        yield from (Declaration(path, owner, name, lines) for name in names if not name.endswith("__"))


def uses(text: str) -> Iterator[tuple[int, str]]:
    """The line and the name of each use: a name that is read, an attribute, a keyword, or a string that is a name."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.MatchClass(kwd_attrs=names):
                yield from ((node.lineno, name) for name in names)
            case ast.Constant(value=str(name)) if NAME_IN_TEXT.fullmatch(name):
                yield from ((node.lineno, part) for part in name.split("."))
            case _:
                continue


def unused(sources: Mapping[PurePosixPath, str]) -> list[str]:
    """``owner.name`` of each declaration whose name is used in no source outside definitions of this name.

    A coincidence of names hides a dead one, and none is reported that is used.
    """
    declared = [each for path, text in sources.items() for each in declarations(path, text)]
    own_lines: defaultdict[tuple[PurePosixPath, str], list[range]] = defaultdict(list)
    for each in declared:
        own_lines[each.path, each.name].append(each.lines)
    used = {
        name
        for path, text in sources.items()
        for line, name in uses(text)
        if not any(line in lines for lines in own_lines.get((path, name), ()))
    }
    return sorted(str(each) for each in declared if each.name not in used)
