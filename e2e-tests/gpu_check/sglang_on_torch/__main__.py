"""Runs the checks of SGLang on this machine's GPU, with the SGLang that is packed beside this package.

    python -m gpu_check.sglang_on_torch [--need-gpu] [--logs DIR] [--only REGEX] [--cpu]

A check that fails prints its traceback, and the end of each server's log. With --cpu the servers compute on the CPU.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check.report import NotShown, Report, outcome_of
from gpu_check.sglang_checks import LIMIT_SECONDS, SglangChecks

LOG_LINES = 60


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--need-gpu", action="store_true")
    arguments.add_argument("--only", default="", help="a regular expression: only the checks whose name it finds")
    arguments.add_argument(
        "--logs", type=Path, help="a folder that keeps the servers' logs (default: they are removed)"
    )
    arguments.add_argument("--cpu", action="store_true", help="rehearse on the CPU")
    arguments.add_argument("--stand-in", default="", help="accepted and not used")
    parsed = arguments.parse_args()
    begun = time.monotonic()
    import torch

    has_gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if has_gpu else "none"
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, GPU {device}", flush=True)
    report = Report()
    with TemporaryDirectory(prefix="gpu-check-") as removed:
        logs = Path(os.environ.get("GPU_CHECK_CALLED_IN", ""), parsed.logs or removed).resolve()
        checks = SglangChecks(logs, "cpu" if parsed.cpu else "cuda")
        for name, check in checks.all().items():
            if not re.search(parsed.only, name):
                continue
            run = explained(check, logs) if has_gpu or parsed.cpu else no_gpu
            report.add(f"gpu: SGLang {name}", outcome_of(run, LIMIT_SECONDS))
            print(f"{time.monotonic() - begun:.0f} s so far", flush=True)
    return report.end(needs_gpu=parsed.need_gpu)


def explained(check: Callable[[], str], logs: Path) -> Callable[[], str]:
    """The check; where it fails, all that is known of why is printed first."""

    def run() -> str:
        begun = time.time()
        try:
            return check()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            for log in sorted(logs.rglob("*.log")):
                if log.stat().st_mtime >= begun:
                    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                    print(f"--- the end of {log.name}:", *lines[-LOG_LINES:], sep="\n", flush=True)
            raise

    return run


def no_gpu() -> str:
    raise NotShown("no GPU")


if __name__ == "__main__":
    sys.exit(main())
