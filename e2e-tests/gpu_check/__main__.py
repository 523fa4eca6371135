"""Runs the checks: those of the CPU anywhere, those of the GPU where torch finds one.

    python -m gpu_check [--need-gpu] [--stand-in LIBCUDA] [--logs DIR]

A line for each check: passed, failed, skipped (what it is about is not there) or not shown (it cannot be made here).
The status is 0 when no check failed; with --need-gpu also nothing may be left unshown.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check import (
    capture_checks,
    copy_checks,
    counter_checks,
    driver_checks,
    killed_writer_checks,
    page_checks,
    pair_checks,
)
from gpu_check.report import NotShown, Report
from gpu_check.right_pairs import RightPairs
from gpu_check.vllm_checks import LIMIT_SECONDS, Checks


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--need-gpu", action="store_true")
    arguments.add_argument("--stand-in", default="", help="a libcuda.so.1 that stands in for NVIDIA's driver")
    arguments.add_argument("--only", default="", help="a regular expression: only the checks whose name it finds")
    arguments.add_argument("--requests", type=int, default=0, help="so many of each equal pair (default: no such pair)")
    arguments.add_argument("--logs", type=Path, help="a folder that keeps the pairs' logs (default: they are removed)")
    parsed = arguments.parse_args()
    begun = time.monotonic()
    import torch

    torch.set_num_threads(1)
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, GPU {device}")
    report = Report(only=parsed.only)
    with TemporaryDirectory(prefix="gpu-check-") as removed:
        logs = parsed.logs or Path(removed)
        report.check("cpu: layer counter, stand-in for the driver", lambda: counter_checks.on_stand_in(parsed.stand_in))
        report.check("cpu: pair, tokens equal", lambda: pair_checks.on_cpu(logs))
        on_gpu(report, logs, has_gpu=torch.cuda.is_available())
        if parsed.requests:
            for name, check in RightPairs(logs, parsed.requests).all().items():
                report.check(f"gpu: vLLM {name}", check if torch.cuda.is_available() else no_gpu, LIMIT_SECONDS)
    print(f"{time.monotonic() - begun:.0f} s")
    return report.end(needs_gpu=parsed.need_gpu)


def on_gpu(report: Report, logs: Path, *, has_gpu: bool) -> None:
    checks = {
        "gpu: the driver takes the counter's kernels": counter_checks.on_device,
        "gpu: capture and 1,000 replays": counter_checks.replays,
        "gpu: cost of a bump": counter_checks.bump_cost,
        "gpu: cost of a step": counter_checks.step_cost,
        "gpu: page in host memory is complete, 10,000 times": page_checks.in_host_memory,
        "gpu: page in device memory is complete, 10,000 times": page_checks.in_device_memory,
        "gpu: 8 allocations imported into one process": page_checks.eight_allocations,
        "gpu: pair with graphs, KV in host memory, tcp": lambda: pair_checks.in_host_memory(logs),
        "gpu: pair with graphs, KV in device memory, cuda": lambda: pair_checks.in_device_memory(logs, "cuda"),
        "gpu: pair with graphs, KV in device memory, staged tcp": lambda: pair_checks.in_device_memory(logs, "tcp"),
        "gpu: pair, KV in device memory, staged shm to a decoder on the CPU": lambda: pair_checks.in_device_memory(
            logs, "shm", decoder_on_cpu=True
        ),
        "gpu: driver calls beside a capture": capture_checks.beside_a_capture,
        "gpu: captures beside traffic, cuda": lambda: pair_checks.capturing(logs, "cuda"),
        "gpu: captures beside traffic, staged tcp": lambda: pair_checks.capturing(logs, "tcp"),
        "gpu: killed prefillers, cuda": lambda: pair_checks.killed_prefillers(logs, "cuda"),
        "gpu: killed prefillers, staged tcp": lambda: pair_checks.killed_prefillers(logs, "tcp"),
        "gpu: a killed writer's queued writes": killed_writer_checks.late_writes,
        "gpu: what the driver answers": driver_checks.answers,
        "gpu: compute-sanitizer on the counter's kernels": counter_checks.under_sanitizer,
        "gpu: 512 scattered pages in one call": copy_checks.scattered,
        "gpu: rate of a long prompt, cuda": lambda: pair_checks.rate(logs, "cuda"),
        "gpu: rate of a long prompt, staged tcp": lambda: pair_checks.rate(logs, "tcp"),
        "gpu: a context's memory": copy_checks.context_cost,
    }
    for name, check in checks.items():
        report.check(name, check if has_gpu else no_gpu)
    for name, check in Checks(logs).all().items():
        report.check(f"gpu: vLLM {name}", check if has_gpu else no_gpu, LIMIT_SECONDS)


def no_gpu() -> str:
    raise NotShown("no GPU")


if __name__ == "__main__":
    sys.exit(main())
