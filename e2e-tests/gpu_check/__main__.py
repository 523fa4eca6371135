"""Runs the checks: those of the CPU anywhere, those of the GPU where torch finds one.

    python -m gpu_check [--need-gpu] [--stand-in LIBCUDA] [--logs DIR]

What is printed, and the status: see runner.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_check.catalogue import catalogue
from gpu_check.check import Check
from gpu_check.lanes import LANES
from gpu_check.runner import Runner
from gpu_check.vllm_checks import SITE, forget_answers


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stand-in", default="", help="a libcuda.so.1 that stands in for NVIDIA's driver")
    arguments.add_argument("--requests", type=int, default=0, help="so many of each equal pair (default: no such pair)")
    arguments.add_argument(
        "--large-model", action="store_true", help="the checks with 8 billion weights, and no others"
    )
    runner = Runner(
        "gpu_check",
        lambda parsed: catalogue(parsed.logs, parsed.stand_in, parsed.requests, large_model=parsed.large_model),
        LANES,
        prepare,
    )
    return runner.main(arguments)


def prepare(logs: Path, checks: Sequence[Check]) -> None:
    """vLLM is compiled by all cores, once: else processes that begin together compile it, each by one core."""
    forget_answers(logs)
    if SITE.exists() and any(check.name.startswith("gpu: vLLM") for check in checks):
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", SITE], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
