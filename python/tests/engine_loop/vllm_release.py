"""Chooses which vLLM this process runs. To be called before anything of vLLM is imported."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

SOURCES_FOLDER = Path(__file__).parent.parent / "vllm"
"""Where the test that knows how releases are fetched lies."""
RELEASES = ("0.32.0", "0.33.0")
SLEEPING = RELEASES[1:]
"""Those that tell connectors when the engine sleeps."""
INSTALLED = RELEASES[0]
"""The release that the engine's environment carries; another one is taken from its wheel's Python files."""


def choose(release: str) -> None:
    """The engine core is Python only: another release's runs with the torch of the installed one."""
    cache = Path(os.environ.get("KV_MESSENGER_CACHE") or Path.home() / ".cache" / "kv-messenger")
    os.environ.update(
        VLLM_CACHE_ROOT=str(cache / "engine-loop" / release),  # what one release keeps there, another cannot read
        VLLM_TARGET_DEVICE="cpu",
        VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        PYTHONHASHSEED="0",  # vLLM draws the first block hash from it
    )
    if release != INSTALLED:
        sys.path.append(str(SOURCES_FOLDER))
        import vllm_sources

        folder = str(vllm_sources.sources(release))
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder  # vLLM looks at a model's class in a process of its own
    elif importlib.util.find_spec("vllm") is None:
        raise SystemExit(
            "no vLLM in this environment: run it in the one that 'examples/setup/environment' calls engine"
        )
