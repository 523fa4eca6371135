"""House rules that a machine can see. Each check takes a path and its text and yields sentences, one a breach."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import java_blocks
import python_declarations

FILE_LINES_MAX = 500
C_FILE_LINES_MAX = 600
"""The functions of a stand-in in C share what is static in their file."""
METHOD_LINES_MAX = 60
CODE_SUFFIXES = {".java", ".py", ".sh", ".proto", ".h", ".c"}
BANNED_WORDS = ("util", "utils", "common", "impl", "manager", "helper", "helpers")
BANNED_CLASS = re.compile(
    r"\b(?:class|record|interface|enum)\s+(\w*(?:Util|Utils|Common|Impl|Manager|Helper|Helpers))\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.~$}*-])/(?:work|root|home/\w+|Users/\w+)/[\w.]")
REGISTRY_HOST = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|repo\d?\.maven\.|maven\.org|debian\.org)|--(?:extra-)?index-url"
)
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
RELEASE = re.compile(r"## (?:Unreleased|\d+\.\d+\.\d+ – \d{4}-\d{2}-\d{2})")
CHANGE_KINDS = ("### New", "### Changed", "### Breaking", "### Fixed")
CHANGE = re.compile(r"- \*\*[\w -]+\*\*: \S")

# A sentence's subject is a thing, and one thing has one word: docs/glossary.md.
PLAIN_WORDS = {
    r"nobody|somebody|anybody|everybody|someone|anyone|whoever|Who": "name the thing that acts",
    r"nonsense": "say 'malformed input' or 'invalid'",
    r"strangers?": "say 'unproven peer' or 'pending connection'",
    r"mend|mends|mended|mending": "say 'fix'",
    r"roads?": "say 'path', 'channel' or 'transport'",
    r"life": "say 'attempt' of a request, 'incarnation' of a process, 'state' of an object",
    r"illness": "say 'health problem'",
    r"untold": "say 'unreported'",
    r"so often": "name the interval",
    r"(?:one|each|every|a|next|last|same) turn(?:s)?": "say 'duty cycle' of an agent, 'rejects' for a refusal",
}
PLAIN = [
    (re.compile(rf"\b(?:{words}|{'|'.join(word.capitalize() for word in words.split('|'))})\b"), remedy)
    for words, remedy in PLAIN_WORDS.items()
]

NAMES_THE_WORDS = ("docs/glossary.md",)  # and what it says in their place

# A program reports, sends or is given something; it says nothing.
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
NO_SPEECH = "say 'report', 'send', 'notify' or 'given' in names"

# Clients that obey the user's environment: http_proxy and its like, .netrc.
WHEEL = "python/kv_connector/"
OBEDIENT_CLIENT = re.compile(
    r"(?:^|\n)[ \t]*(?:import|from)[ \t]+(?:urllib\.request|requests|httpx|aiohttp|urllib3)\b|\burlopen\("
)
OBEDIENT_CALL = re.compile(r"\burlopen\(|\btrust_env=True")

Check = Callable[[PurePosixPath, str], Iterator[str]]


def file_length(path: PurePosixPath, text: str) -> Iterator[str]:
    count = text.count("\n")
    limit = C_FILE_LINES_MAX if path.suffix == ".c" else FILE_LINES_MAX
    if path.suffix in CODE_SUFFIXES and count >= limit:
        yield f"{path} has {count} lines, expected fewer than {limit}: split it by topic"


def python_method_length(path: PurePosixPath, text: str) -> Iterator[str]:
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from too_long(path, node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)


def java_method_length(path: PurePosixPath, text: str) -> Iterator[str]:
    if path.suffix == ".java":
        for block in java_blocks.blocks(text):
            if block.kind == "method":
                yield from too_long(path, block.name, block.first_line, block.last_line - block.first_line + 1)


def too_long(path: PurePosixPath, name: str, line: int, length: int) -> Iterator[str]:
    if length > METHOD_LINES_MAX:
        yield f"{path}:{line} {name} has {length} lines, expected at most {METHOD_LINES_MAX}"


def names(path: PurePosixPath, text: str) -> Iterator[str]:
    for part in (*path.parent.parts, path.stem):
        if part.lower() in BANNED_WORDS:
            yield f"{path}: '{part}' says nothing; name what is in it"
    if path.suffix in {".java", ".py"}:
        for found in BANNED_CLASS.finditer(text):
            yield f"{path}: '{found.group(1)}' says nothing; name its role"


def machine_paths(path: PurePosixPath, text: str) -> Iterator[str]:
    yield from matches(path, text, MACHINE_PATH, "a path of one machine")


def registry_hosts(path: PurePosixPath, text: str) -> Iterator[str]:
    yield from matches(path, text, REGISTRY_HOST, "a package registry's host; the user's own client knows it")


def unfinished(path: PurePosixPath, text: str) -> Iterator[str]:
    yield from matches(path, text, UNFINISHED, "a note to self; finish it, or say in docs what is missing")


def matches(path: PurePosixPath, text: str, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    for found in pattern.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield f"{path}:{line} '{found.group()}': {what}"


def markdown_title(path: PurePosixPath, text: str) -> Iterator[str]:
    if path.suffix == ".md":
        titles = [line for line in outside_fences(text) if line.startswith("# ")]
        if len(titles) != 1:
            yield f"{path} has {len(titles)} titles, expected one"


def outside_fences(text: str) -> Iterator[str]:
    fenced = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line


def links(root: Path) -> Check:
    """Relative links of a markdown file lead to files of the tree."""

    def leads_somewhere(path: PurePosixPath, target: str) -> bool:
        file = target.partition("#")[0]
        return not file or "://" in file or file.startswith("mailto:") or (root / path.parent / file).exists()

    def check(path: PurePosixPath, text: str) -> Iterator[str]:
        if path.suffix == ".md":
            for target in LINK.findall("\n".join(outside_fences(text))):
                if not leads_somewhere(path, target):
                    yield f"{path}: the link {target} leads nowhere"

    return check


def changelog(path: PurePosixPath, text: str) -> Iterator[str]:
    """Releases, then kinds of change, then one line a change that begins with the part it touches."""
    if path.name != "CHANGELOG.md":
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## ") and not RELEASE.fullmatch(line):
            yield f"{path}:{number} '{line}', expected '## Unreleased' or '## 1.2.3 – 2026-01-31'"
        elif line.startswith("### ") and line not in CHANGE_KINDS:
            yield f"{path}:{number} '{line}', expected one of {', '.join(CHANGE_KINDS)}"
        elif line.startswith("- ") and not CHANGE.match(line):
            yield f"{path}:{number} expected '- **part**: what changed for the user'"


def plain_words(path: PurePosixPath, text: str) -> Iterator[str]:
    if str(path) in NAMES_THE_WORDS:
        return
    for pattern, remedy in PLAIN:
        yield from matches(path, text, pattern, remedy)


def no_speech(path: PurePosixPath, text: str) -> Iterator[str]:
    if path.suffix == ".java":
        for number, code in enumerate(java_blocks.without_opaque(text).splitlines(), 1):
            for name in filter(python_declarations.has_speech, IDENTIFIER.findall(code)):
                yield f"{path}:{number} '{name}': {NO_SPEECH}"
    if path.suffix == ".py":
        if python_declarations.has_speech(path.stem):
            yield f"{path}: {NO_SPEECH}"
        for line, name in python_declarations.names_of_speech(text):
            yield f"{path}:{line} '{name}': {NO_SPEECH}"


def no_proxies(path: PurePosixPath, text: str) -> Iterator[str]:
    """A proxy variable of a pod must not send a question to this pod, or to a peer, through a proxy."""
    if path.suffix == ".py" and str(path).startswith((WHEEL, "examples/")):
        pattern = OBEDIENT_CLIENT if str(path).startswith(WHEEL) else OBEDIENT_CALL
        yield from matches(path, text, pattern, "use kv_connector.runtime.plain_http, or an opener without proxies")
    if path.suffix == ".java" and "/src/main/" in str(path) and "HttpClient.new" in text and "NO_PROXY" not in text:
        yield f"{path} has an HttpClient that asks the system for a proxy: set HttpClient.Builder.NO_PROXY"


def checks(root: Path) -> dict[str, Check]:
    return {
        "files are short": file_length,
        "python methods are short": python_method_length,
        "java methods are short": java_method_length,
        "names say something": names,
        "no machine paths": machine_paths,
        "no registry hosts": registry_hosts,
        "nothing is left to finish": unfinished,
        "plain words": plain_words,
        "names do not speak": no_speech,
        "no client obeys a proxy": no_proxies,
        "one title a page": markdown_title,
        "links lead somewhere": links(root),
        "the changelog has its form": changelog,
    }
