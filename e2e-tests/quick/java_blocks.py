"""Blocks and fields of Java source, found by matching braces: no parser needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

OPAQUE: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.DOTALL
)
"""Strings, characters and comments: a brace or a name inside one does not count."""
TYPE: Final = re.compile(r"\b(?:class|interface|enum|record)\s+(\w+)|@interface\b")
CONTROL: Final = re.compile(r"^(?:if|for|while|switch|try|catch|finally|else|do|synchronized|return|new|throw)\b")
COMPACT: Final = re.compile(r"(?:@\w+\s+)*(?:(?:public|protected|private)\s+)?(\w+)")
"""The head of a record's constructor without parameters."""


class Block(NamedTuple):
    kind: str
    """``type``, ``method``, ``field`` or ``other``."""
    name: str
    """Of a type or a method; of a field, that of its type."""
    head: str
    """What stands before the opening brace, or a field's whole declaration."""
    first_line: int
    last_line: int


def without_opaque(text: str) -> str:
    return OPAQUE.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def blocks(text: str) -> Iterator[Block]:
    """Each pair of braces where it ends, and each field of a type."""
    bare = without_opaque(text)
    enclosing: list[tuple[str, str, str, int]] = []  # kind, name, head and first line of each open block
    head_start = 0
    for found in re.finditer(r"[{};]", bare):
        source = bare[head_start : found.start()]
        head_start = found.end()
        line = bare.count("\n", 0, found.start()) + 1
        first = line - source.strip().count("\n")
        inside, owner = enclosing[-1][:2] if enclosing else ("file", "")
        head = " ".join(source.split())
        if found.group() == "{":
            enclosing.append((*kind_of(head, inside, owner), head, first))
        elif found.group() == ";" and inside == "type":
            yield Block("field", owner, head, first, line)
        elif found.group() == "}" and enclosing:
            yield Block(*enclosing.pop(), line)


def kind_of(head: str, inside: str, owner: str) -> tuple[str, str]:
    """The kind and the name of the block with this head, in a block of this kind and name."""
    before_parentheses = head.partition("(")[0]
    if found := TYPE.search(before_parentheses):
        return "type", found.group(1) or ""
    if inside == "type" and (compact := COMPACT.fullmatch(head)) and compact.group(1) == owner:
        return "method", owner
    if inside == "type" and "(" in head and "=" not in before_parentheses and not CONTROL.match(head):
        return "method", before_parentheses.split()[-1]
    return "other", ""
