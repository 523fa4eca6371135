"""Each rule finds its breach, and leaves its neighbour alone."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest
from checks import checks

RULES = checks(Path("/nowhere"))
JAVA_LONG = (
    'class Sender {\n    String brace = "}{";\n    void send(int count) {\n' + "        run();\n" * 60 + "    }\n}\n"
)
JAVA_SHORT = (
    "final class Sender {\n    void send() {\n        if (ready()) {\n            go();\n        }\n    }\n"
    + "    // a comment with a brace {\n    int field;\n" * 70
    + "}\n"
)
PYTHON_LONG = "def send():\n" + "    run()\n" * 60
PYTHON_SHORT = "def send():\n" + "    run()\n" * 59

# rule: (path and text of a breach, path and text of what only looks like one)
CASES = {
    "files are short": ("Long.java", "\n" * 500, "Short.java", "\n" * 499),
    "python methods are short": ("long.py", PYTHON_LONG, "short.py", PYTHON_SHORT),
    "java methods are short": ("Long.java", JAVA_LONG, "Short.java", JAVA_SHORT),
    "names say something": ("io/util/Sender.java", "", "io/utility/Sender.java", "final class Sender {}"),
    "no machine paths": ("a.md", "see /root/.cache", "a.md", "see ~/.cache and the network"),
    "no registry hosts": ("a.md", "from pypi.org", "a.md", "from PyPI"),
    "nothing is left to finish": ("a.py", "# TODO later", "a.py", "# what is to do"),
    "plain words": (
        "a.md",
        "Nobody waits.",
        "a.md",
        "No thread waits; see the lifetime of a lifeguard, who spends it.",
    ),
    "names do not speak": (
        "a/src/main/A.java",
        "class A { int tellAll() { return 0; } }",
        "a/src/main/A.java",
        'class A { // what it was told\n  String report() { return "said"; }\n  int teller;\n}',
    ),
    "no client obeys a proxy": (
        "python/kv_connector/cli/page.py",
        "def ask():\n    import requests\n",
        "python/kv_connector/cli/page.py",
        "from kv_connector.requests_of import ask\nfrom urllib.parse import urlsplit\n",
    ),
    "one title a page": ("a.md", "# One\n# Two\n", "a.md", "# One\n```\n# a comment\n```\n"),
    "links lead somewhere": ("a.md", "[a](b.md)", "a.md", "[a](https://example.org) [b](#here)"),
    "the changelog has its form": ("CHANGELOG.md", "- fixed it\n", "CHANGELOG.md", "- **tcp**: fixed it\n"),
}


@pytest.mark.parametrize("rule", list(RULES))
def test_rule_finds_its_breach(rule: str) -> None:
    path, text, _, _ = CASES[rule]
    assert len(list(RULES[rule](PurePosixPath(path), text))) == 1


@pytest.mark.parametrize("rule", list(RULES))
def test_rule_leaves_the_neighbour_alone(rule: str) -> None:
    _, _, path, text = CASES[rule]
    assert list(RULES[rule](PurePosixPath(path), text)) == []


def test_stand_ins_in_c_may_be_longer() -> None:
    rule = RULES["files are short"]
    assert len(list(rule(PurePosixPath("memory.c"), "\n" * 600))) == 1
    assert list(rule(PurePosixPath("memory.c"), "\n" * 599)) == []


def test_class_named_by_no_role_is_found() -> None:
    assert list(RULES["names say something"](PurePosixPath("A.java"), "public final class PageManager {}"))


@pytest.mark.parametrize("head", ["record Sent(int count)", "public class Sent"])
def test_constructor_of_any_kind_is_a_method(head: str) -> None:
    kind = "" if head.startswith("record") else "()"
    text = f"{head} {{\n    Sent{kind} {{\n" + "        run();\n" * 59 + "    }\n}\n"
    rule = RULES["java methods are short"]
    assert len(list(rule(PurePosixPath("Sent.java"), text))) == 1
    assert list(rule(PurePosixPath("Sent.java"), text.replace("        run();\n", "", 1))) == []


@pytest.mark.parametrize("name", ["tellAll", "isTold", "Told", "PeerTold", "BYTES_SAID", "telling", "tells"])
def test_each_java_name_that_speaks_is_found(name: str) -> None:
    text = f"class A {{\n    int {name};\n}}\n"
    assert len(list(RULES["names do not speak"](PurePosixPath("a/src/main/A.java"), text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for somebody else",
        "Whoever asks",
        "two roads",
        "its next life",
        "a stranger",
        "the user's to mend",
        "in one turn",
    ],
)
def test_each_kind_of_word_is_found(text: str) -> None:
    assert len(list(RULES["plain words"](PurePosixPath("A.java"), f"/** {text}. */"))) == 1


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "def tell(): ...\n"),
        ("a.py", "def test_should_tell_twice(): ...\n"),
        ("a.py", "async def _tell_stages(): ...\n"),
        ("a.py", "class Told: ...\n"),
        ("a.py", "def send(*, said=1): ...\n"),
        ("a.py", "call(lambda **said: 0)\n"),
        ("a.py", "SAID_BYTES = 1\n"),
        ("a.py", "self._told = 1\n"),
        ("a.py", "(one, told_apart), other = pair\n"),
        ("a.py", "rest = [told for told in line]\n"),
        ("a.py", "match line:\n    case Log(told): ...\n"),
        ("a.py", "import options as said_options\n"),
        ("a.py", "if (toldApart := next(line)): ...\n"),
        ("said_options.py", ""),
    ],
)
def test_each_python_declaration_that_speaks_is_found(path: str, text: str) -> None:
    assert len(list(RULES["names do not speak"](PurePosixPath(path), text))) == 1


def test_python_that_only_uses_or_contains_such_words_is_left_alone() -> None:
    text = """position = file.tell()  # what it was told
teller = {"said": 1}["said"]
intelligent = tolled = satellite = saddle = "told"
"""
    assert list(RULES["names do not speak"](PurePosixPath("a.py"), text)) == []
