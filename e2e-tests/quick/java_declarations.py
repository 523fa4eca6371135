"""Declarations of production Java that production does not use, and classes whose states are booleans.

A declaration is recognised by its line, and used if its name occurs anywhere else in production code, comments apart:
a coincidence of names hides a dead one, and none is reported that lives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from java_blocks import blocks, without_opaque

COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
TEXT: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
WORD: Final = re.compile(r"[A-Za-z_]\w*")
MODIFIERS: Final = r"(?:(?:public|protected|private|static|final|abstract|default|sealed|non-sealed)\s+)*"
TYPE: Final = re.compile(rf"\s*{MODIFIERS}(?:class|record|interface|enum)\s+(\w+)")
MEMBER: Final = re.compile(rf"\s*{MODIFIERS}(?:<[^>]+>\s+)?(\w[\w.<>\[\],? ]*?)\s+(\w+)\s*[(=;]")
NO_TYPES: Final = frozenset({"return", "new", "throw", "else", "case", "yield", "assert", "import", "package"})
RECORD: Final = re.compile(r"\brecord\s+\w+(?:<[^(]*>)?\s*\((?P<components>[^{]*?)\)\s*(?:implements\s[^{]*)?\{")
GENERIC: Final = re.compile(r"<[^()]*?>+(?=\s|\.|\[)|@\w+\([^)]*\)")
COMPONENT: Final = re.compile(r"(\w+)\s*(?:,|\Z)")
ENUM: Final = re.compile(r"\benum\s+\w+[^{;]*\{")
INNERMOST: Final = re.compile(r"\([^(){}]*\)|\{[^(){}]*\}")
BOOLEAN_STATE: Final = re.compile(
    r"(?:@\w+(?:\([^)]*\))? )*(?:(?:public|protected|private|static|volatile) )*boolean (?P<names>\w+(?: =.*|,.+)?)"
)
PARENTHESES: Final = re.compile(r"(?<==)[^()]*\(.*\)")
BOOLEANS_MAX: Final = 2
"""More of them have states together that no reader can list: an enum has."""


def declared(text: str) -> Iterator[str]:
    """Names of types, methods, constants, fields and components, but not of methods that override others."""
    overrides = False
    for line in TEXT.sub('""', text).splitlines():
        kind = TYPE.match(line)
        member = MEMBER.match(line)
        if kind:
            yield kind.group(1)
        elif member and member.group(1).split()[0] not in NO_TYPES and not overrides:
            yield member.group(2)
        if line.strip():
            overrides = "@Override" in line
    for record in RECORD.finditer(text):
        yield from COMPONENT.findall(GENERIC.sub("", record.group("components")))
    yield from enum_constants(without_opaque(text))


def enum_constants(text: str) -> Iterator[str]:
    """Names of the constants of all enums in text without comments and strings."""
    for enum in ENUM.finditer(text):
        body, before = text[enum.end() :], ""
        while body != before:
            before, body = body, INNERMOST.sub("", body)
        yield from COMPONENT.findall(re.split("[;}]", body)[0].strip())


def unused(production: Mapping[PurePosixPath, str]) -> list[str]:
    """``Type.name`` of each declaration whose name production has once."""
    bare = {path: COMMENT.sub(" ", text) for path, text in production.items()}
    times = Counter(word for text in bare.values() for word in WORD.findall(text))
    java = {path: text for path, text in bare.items() if path.suffix == ".java"}
    return sorted(f"{path.stem}.{name}" for path, text in java.items() for name in declared(text) if times[name] == 1)


def boolean_states(production: Mapping[PurePosixPath, str]) -> dict[str, int]:
    """The number of mutable boolean fields of each class that has too many."""
    java = (text for path, text in production.items() if path.suffix == ".java" and "boolean" in text)
    fields = (block for text in java for block in blocks(text) if block.kind == "field")
    counts: Counter[str] = Counter()
    for field in fields:
        state = BOOLEAN_STATE.fullmatch(PARENTHESES.sub("", field.head))
        counts[field.name] += state["names"].count(",") + 1 if state else 0
    return {name: count for name, count in counts.items() if count > BOOLEANS_MAX}


def production_of(root: Path) -> dict[PurePosixPath, str]:
    """Java of all modules but the test kit's, which uses the others as tests do, and the Python that Java calls."""
    sources = [
        *(file for file in root.glob("**/src/main/java/**/*.java") if "testkit" not in file.parts),
        *root.glob("python/kv_connector/**/*.py"),
    ]
    return {PurePosixPath(file.relative_to(root)): file.read_text(encoding="utf-8") for file in sources}
