"""All checks of SGLang, in the order in which they begin."""

from __future__ import annotations

from pathlib import Path

from gpu_check.check import Check
from gpu_check.sglang_checks import LIMIT_SECONDS, SglangChecks


def catalogue(logs: Path, device: str) -> list[Check]:
    """On the CPU they need no GPU, and do not say that they had one."""
    kind = "cpu" if device == "cpu" else "gpu"
    return [
        Check(f"{kind}: SGLang {name}", run, LIMIT_SECONDS, after=f"{kind}: SGLang {after}" if after else "")
        for name, (run, after) in SglangChecks(logs, device).all().items()
    ]
