"""No declaration of the Python package is without a use."""

from __future__ import annotations

import fnmatch
from pathlib import Path, PurePosixPath
from typing import Final

import pytest
from python_declarations import unused

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = (*ROOT.glob("python/kv_connector/**/*.py"), ROOT / "python" / "kv_connector_door.py")
PRODUCTION: Final = {PurePosixPath(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in FILES}

USED_ELSEWHERE: Final = {
    "KvMessengerConnector.[a-z]*": "vLLM calls them; python/tests/vllm/test_release.py compares them with its own list",
    "KvMessengerConnector._cache_hit_source": "vLLM reads it",
    "KvMessengerWeightEngine.[a-z]*": "vLLM calls or reads them",
    "KvMessengerWeightTransfer.[a-z]*": "TRL calls them",
    "trl.KvMessengerWeightTransfer": "users give it to TRL",
    "FsdpWeightTransfer.send_weights": "trainers call it",
    "fsdp.FsdpWeightTransfer": "trainers make it",
    "MessengerStats.aggregate": "vLLM adds up the figures of ranks",
    "WorkerNews.aggregate": "vLLM adds up the metadata of ranks",
    "Receiver.[a-z]*": "SGLang calls them",
    "Sender.[a-z]*": "SGLang calls them",
    "TransferEndpoint.reports_transfer_latency": "SGLang reads it",
    "TransferEndpoint.supports_*": "SGLang reads them",
    "TransferEndpoint.*register_buffer_to_engine": "SGLang calls them",
    "Loader.*": "Python's imports call them",
    "_Reader.read*": "io.BufferedReader calls them",
    "_*._fields_": "ctypes reads them",
    "Options.*": "each is passed to Java by the table of options",
    "Fetch.*": "a command: all its fields are passed to Java",
    "Ask.*": "a command: all its fields are passed to Java",
    "PullEnded.*": "a command: all its fields are passed to Java",
    "Prices.*": "a command: all its fields are passed to Java",
    "SourcePrice.*": "a part of a command: all its fields are passed to Java",
    "Compared.*": "a command: all its fields are passed to Java",
    "ContextRow.*": "Java reads them",
    "Granted.context_kinds": "an event of docs/boundary.md has it",
    "OptionSpec.default_shown": "docs/options.md is made with it",
    "SchedulerHalf.is_idle": "tests look for leaks with it",
    "timelines.prefills": "tests read a prefiller's log with it",
    "argument_lists.COMPARED": "a test refuses an argument of SGLang that neither list has",
    "weight_changes.CHANGING": "a test refuses a method of vLLM that neither list has",
}
"""Names that the package does not use, and what does."""


def left_over(sources: dict[PurePosixPath, str]) -> list[str]:
    return [name for name in unused(sources) if not any(fnmatch.fnmatch(name, known) for known in USED_ELSEWHERE)]


def test_no_declaration_is_without_a_use() -> None:
    assert len(PRODUCTION) > 100
    assert not left_over(PRODUCTION), "the package uses none of these: take them out, or name what does"


def test_each_name_that_is_used_elsewhere_is_unused_here() -> None:
    found = unused(PRODUCTION)
    assert [known for known in USED_ELSEWHERE if not fnmatch.filter(found, known)] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def dead() -> int:\n    return dead()\n", "planted.dead"),
        ("class Dead:\n    def copy(self) -> Dead: ...\n", "planted.Dead"),
        ("DEAD_SECONDS = 1.0\n", "planted.DEAD_SECONDS"),
        ("class Options:\n    def dead(self) -> None: ...\n", "Options.dead"),
        ("class Rank:\n    dead_bytes: int = 0\n", "Rank.dead_bytes"),
        ("if ON_A_GPU:\n    def dead() -> None: ...\n", "planted.dead"),
        ('def dead() -> None:\n    """Calls dead, never."""\n', "planted.dead"),
    ],
)
def test_a_planted_declaration_is_found(text: str, name: str) -> None:
    assert name in unused({PurePosixPath("planted.py"): text})


@pytest.mark.parametrize(
    "use",
    [
        "planted()\n",
        "from planted import planted as other\nhook(module.planted)\n",
        'getattr(module, "planted")\n',
        'patch("package.module.planted")\n',
        "text = f'{planted()}'\n",
    ],
)
def test_a_use_is_seen(use: str) -> None:
    sources = {PurePosixPath("a.py"): "def planted() -> None: ...\n", PurePosixPath("b.py"): use}
    assert "a.planted" not in unused(sources)


def test_an_assignment_is_no_use() -> None:
    sources = {PurePosixPath("a.py"): "planted = 1\n", PurePosixPath("b.py"): "planted = 2\n"}
    assert unused(sources) == ["a.planted", "b.planted"]
