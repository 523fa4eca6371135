"""Runs the checks: those of the CPU anywhere, those of the GPU where torch finds one.

    python -m gpu_check [--need-gpu] [--stand-in LIBCUDA] [--logs DIR]

A line for each check: passed, failed, skipped (what it is about is not there) or not shown (it cannot be made here).
The status is 0 when no check failed; with --need-gpu also nothing may be left unshown.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check.catalogue import catalogue
from gpu_check.lanes import LANES, InProcesses, run_all, without_gpu
from gpu_check.report import Report, outcome_of
from gpu_check.vllm_checks import SITE, forget_answers

CALLED_IN = "GPU_CHECK_CALLED_IN"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--need-gpu", action="store_true")
    arguments.add_argument("--stand-in", default="", help="a libcuda.so.1 that stands in for NVIDIA's driver")
    arguments.add_argument("--only", default="", help="a regular expression: only the checks whose name it finds")
    arguments.add_argument("--requests", type=int, default=0, help="so many of each equal pair (default: no such pair)")
    arguments.add_argument("--lanes", type=int, default=LANES, help=f"how many checks run at a time (default: {LANES})")
    arguments.add_argument("--logs", type=Path, help="a folder that keeps the pairs' logs (default: they are removed)")
    arguments.add_argument("--in-this-process", metavar="NAME", help="this check alone; its outcome is the last line")
    parsed = arguments.parse_args()
    if parsed.in_this_process:
        return run_here(parsed)
    with TemporaryDirectory(prefix="gpu-check-") as removed:
        return run_each(parsed, kept(parsed.logs) if parsed.logs else Path(removed))


def kept(logs: Path) -> Path:
    """The packed file's script runs the checks in a folder that it removes, and says from where it was called."""
    folder = Path(os.environ.get(CALLED_IN, "."), logs).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_here(parsed: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1)
    (check,) = [
        each for each in catalogue(parsed.logs, parsed.stand_in, parsed.requests) if each.name == parsed.in_this_process
    ]
    print(f"\n{outcome_of(check.run, check.limit_seconds).as_line()}", flush=True)
    return 0


def run_each(parsed: argparse.Namespace, logs: Path) -> int:
    begun = time.monotonic()
    import torch

    has_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if has_gpu else "none"
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, GPU {device}", flush=True)
    forget_answers(logs)
    only = re.compile(parsed.only)
    checks = [each for each in catalogue(logs, parsed.stand_in, parsed.requests) if only.search(each.name)]
    if has_gpu and any(each.name.startswith("gpu: vLLM") for each in checks):
        compile_vllm()
    given = ["--stand-in", parsed.stand_in, "--requests", str(parsed.requests), "--logs", str(logs)]
    report = Report(partial(print, flush=True))
    with InProcesses([sys.executable, "-m", "gpu_check", *given, "--in-this-process"]) as run:
        for check, outcome in run_all(checks, run if has_gpu else without_gpu(run), parsed.lanes):
            report.add(check.name, outcome)
    print(f"{time.monotonic() - begun:.0f} s")
    return report.end(needs_gpu=parsed.need_gpu)


def compile_vllm() -> None:
    """By all cores, once: else several processes that begin together compile the same files, each by one core."""
    if SITE.exists():
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", SITE], capture_output=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
