"""Names that Python code declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""The words of a name in snake_case, CamelCase or capitals."""
SPEECH: Final = frozenset({"said", "tell", "telling", "tells", "told"})
TEST: Final = "test_"
"""The names of test functions are sentences, and may have any word."""


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that one node declares: of a definition, an argument, an assignment, an attribute, or an import."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if not name.startswith(TEST):
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
