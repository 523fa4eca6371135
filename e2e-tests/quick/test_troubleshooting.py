"""What the pages quote of the log, the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("troubleshooting.md", "compatibility.md")
SOURCES = ("python/kv_connector", "connector-java", "kvlayout")
QUOTED = re.compile(r"```text\n(.*?)```", re.DOTALL)
TABLE_QUOTED = re.compile(r"^\| `([^`]*…[^`]*|the peer closed[^`]*)` \|", re.MULTILINE)
ADJACENT = re.compile(r'"\s*\n\s*\+?\s*f?"|"\s*\+\s*"')
"""Two literals of one text, as Java and Python write them."""
PROTOCOL_VERSION = re.compile(r"PROTOCOL_VERSION = (\d+);")
PROTOCOL_VERSION_OLDEST = re.compile(r"PROTOCOL_VERSION_OLDEST = (\d+);")
ANY = "…"


def sentences_of_the_code() -> str:
    """All sources, with the parts of each text in one piece."""
    files = [
        file
        for folder in SOURCES
        for kind in ("*.py", "*.java")
        for file in sorted((ROOT / folder).rglob(kind))
        if "/test/" not in str(file) and "/target/" not in str(file) and "/testkit/" not in str(file)
    ]
    return ADJACENT.sub("", "\n".join(file.read_text(encoding="utf-8") for file in files))


CODE = sentences_of_the_code()


def quotes() -> list[str]:
    texts = [(ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES]
    fenced = [line for text in texts for block in QUOTED.findall(text) for line in block.splitlines()]
    return list(dict.fromkeys([*fenced, *(line for text in texts for line in TABLE_QUOTED.findall(text))]))


def missing(line: str, code: str = CODE) -> list[str]:
    """Parts of the line that the code does not say."""
    parts = [part.strip(" ") for part in line.split(ANY)]
    return [part for part in parts if len(part) > 3 and part not in code]


def test_pages_quote_lines() -> None:
    assert len(quotes()) > 15


@pytest.mark.parametrize("line", quotes())
def test_code_says_what_the_page_quotes(line: str) -> None:
    assert max(len(part) for part in line.split(ANY)) > 3, "nothing of this line could be looked for"
    assert missing(line) == []


def test_a_line_that_no_code_says_is_found() -> None:
    assert missing("the prefiller is on … holiday") == ["the prefiller is on", "holiday"]


def test_page_names_the_protocol_version_of_the_code() -> None:
    (newest,) = set(PROTOCOL_VERSION.findall(CODE))
    (oldest,) = set(PROTOCOL_VERSION_OLDEST.findall(CODE))
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert f"speaks the protocol versions {oldest} to {newest} today" in " ".join(page.split())
