"""What the tests with SGLang servers share: the reference, where servers are made, and the launcher of warm ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Reference
from plain_sglang import sglang_answers
from sglang_bed import Ground
from sglang_workload import ANSWER_TOKENS, all_prompts
from warm_sglang import LAUNCHER


@pytest.fixture(scope="session")
def by_sglang(model: Path, run_folder: Path) -> Reference:
    prompts = all_prompts()
    answers = sglang_answers(model, prompts, ANSWER_TOKENS, run_folder, lambda line: print(line, flush=True))
    return Reference(dict(zip(prompts, answers, strict=True)))


@pytest.fixture(scope="session")
def ground(model: Path, run_folder: Path) -> Ground:
    return Ground(model, run_folder)


@pytest.fixture(scope="session", autouse=True)
def sglang_launcher() -> Iterator[None]:
    """Whatever started warm servers is gone with the session."""
    yield
    LAUNCHER.stop()
