"""vLLM 0.33 on a CPU: the Python of its wheel above the compiled CPU kernels of the installed release.

No wheel of 0.33 for CPUs exists. What vLLM looks up of its own version stays that of the installed one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from warm_starts import packages_of

SOURCES = Path(__file__).resolve().parents[1] / "python" / "tests" / "vllm"
"""Where the module that fetches a release's Python lies."""
RELEASE = "0.33.0"


def environment_of_0_33(folder: Path) -> dict[str, str]:
    """For a server that imports vLLM from `folder`, which is made."""
    if str(SOURCES) not in sys.path:
        sys.path.append(str(SOURCES))
    vllm_sources = importlib.import_module("vllm_sources")
    package = folder / "vllm"
    linked(vllm_sources.sources(RELEASE) / "vllm", package, lambda file: file.suffix == ".py")
    linked(packages_of("vllm"), package, lambda file: file.suffix not in (".py", ".pyc"))
    return {"PYTHONPATH": str(folder), "VLLM_TARGET_DEVICE": "cpu", "VLLM_CACHE_ROOT": str(folder / "cache")}


def linked(source: Path, target: Path, chosen: Callable[[Path], bool]) -> None:
    for file in source.rglob("*"):
        place = target / file.relative_to(source)
        if file.is_file() and chosen(file) and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(file)
