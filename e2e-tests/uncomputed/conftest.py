"""Each engine's pairs run in the environment that has the engine; what they stand on runs in both.

All tests of a release fork their vLLMs from one process: it takes longer to import vLLM than to judge a pair.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from uncomputed.pair import Engines, stand_ins
from uncomputed.stories import Stories

PAIRS = {
    "vllm": (
        "test_backends.py",
        "test_fabric.py",
        "test_first_day.py",
        "test_pulls.py",
        "test_vllm.py",
        "test_vllm_on_cpu.py",
        "test_weights.py",
    ),
    "sglang": ("test_sglang.py", "test_sglang_host_cache.py", "test_sglang_sleep.py", "test_staged_shm.py"),
}
collect_ignore = [file for engine, files in PAIRS.items() if importlib.util.find_spec(engine) is None for file in files]
SOURCES = Path(__file__).resolve().parents[2] / "python" / "tests" / "vllm"
"""Where the module that fetches another release's Python lies."""
OTHER_RELEASE = "0.33.0"


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stories]:
    made = Stories(tmp_path_factory.mktemp("stories"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    made = Engines(stand_ins())
    yield made
    made.stop()


@pytest.fixture(scope="session")
def other_engines() -> Iterator[Engines]:
    """Of the release that also tells connectors of a sleep."""
    sys.path.append(str(SOURCES))
    fetched: Any = importlib.import_module("vllm_sources")
    made = Engines(stand_ins(), fetched.sources(OTHER_RELEASE))
    yield made
    made.stop()
