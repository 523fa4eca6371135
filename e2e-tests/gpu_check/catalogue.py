"""All checks, in the order in which they begin: most of what a GPU has to show comes first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from gpu_check import (
    capture_checks,
    copy_checks,
    copy_kernel_checks,
    counter_checks,
    driver_checks,
    killed_writer_checks,
    page_checks,
    pair_checks,
)
from gpu_check.check import Check
from gpu_check.hand_over_checks import HandOvers
from gpu_check.large_model import LIMIT_SECONDS as LARGE_LIMIT_SECONDS
from gpu_check.pull_checks import Pulls
from gpu_check.right_pairs import RightPairs
from gpu_check.vllm_checks import LIMIT_SECONDS as VLLM_LIMIT_SECONDS
from gpu_check.vllm_checks import OTHER_WEIGHTS, Checks

NO_KERNELS = "it computes by Triton's kernels, which compute nothing here (rows are judged by e2e-tests/uncomputed)"
NO_OTHER_WEIGHTS = "what other weights change is computed, and rows are made without weights here"
NO_CLOCK = "it measures by a GPU's clock and speed, and here is neither"
NO_CONTEXT = "it measures a context's memory, and contexts have none here"
NO_SECOND_DRIVER = "it loads a stand-in for the driver, and here is one already (it runs where there is no GPU)"


def catalogue(logs: Path, stand_in: str, requests: int, *, large_model: bool) -> list[Check]:
    """`requests`: so many of each equal pair, which the comparison of last tokens must all find equal; 0: none.

    `large_model`: the checks with a model of real size, and no others.
    """
    if large_model:
        return _of_large_model(logs)
    checks = [
        *_pairs(logs),
        *_captures(logs),
        *_of_vllm(logs),
        *_facts(),
        *_faults(logs),
        *_costs(logs),
        Check(
            "cpu: layer counter, stand-in for the driver",
            partial(counter_checks.on_stand_in, stand_in),
            not_by_host=NO_SECOND_DRIVER,
        ),
        Check("cpu: pair, tokens equal", partial(pair_checks.on_cpu, logs)),
    ]
    if requests:
        many = RightPairs(logs, requests).all().items()
        checks += [Check(f"gpu: vLLM {name}", run, VLLM_LIMIT_SECONDS, not_by_host=NO_KERNELS) for name, run in many]
    return checks


def _of_large_model(logs: Path) -> list[Check]:
    """With a model of real size, one by one."""
    checks = HandOvers(logs).all() | Pulls(logs).all()
    return [
        Check(f"gpu: vLLM {name}", run, LARGE_LIMIT_SECONDS, measures=True, not_by_host=NO_KERNELS)
        for name, run in checks.items()
    ]


def _pairs(logs: Path) -> list[Check]:
    """First and each alone, with graphs: that layers leave before their pass has ended is a matter of time."""
    in_device_memory = partial(pair_checks.in_device_memory, logs)
    checks: dict[str, Callable[[], str]] = {
        "pair with graphs, KV in device memory, cuda": partial(in_device_memory, "cuda"),
        "pair with graphs, KV in device memory, staged tcp": partial(in_device_memory, "tcp"),
        "pair, KV in device memory, staged shm to a decoder on the CPU": partial(
            in_device_memory, "shm", decoder_on_cpu=True
        ),
        "pair with graphs, KV in host memory, tcp": partial(pair_checks.in_host_memory, logs),
    }
    return [Check(f"gpu: {name}", run, measures=True) for name, run in checks.items()]


def _captures(logs: Path) -> list[Check]:
    checks: dict[str, Callable[[], str]] = {
        "captures beside traffic, cuda": partial(pair_checks.capturing, logs, "cuda"),
        "captures beside traffic, staged tcp": partial(pair_checks.capturing, logs, "tcp"),
        "driver calls beside a capture": capture_checks.beside_a_capture,
    }
    return [Check(f"gpu: {name}", run) for name, run in checks.items()]


def _of_vllm(logs: Path) -> list[Check]:
    """The longest."""
    return [
        Check(
            f"gpu: vLLM {name}",
            run,
            VLLM_LIMIT_SECONDS,
            after=f"gpu: vLLM {after}" if after else "",
            not_by_host=NO_OTHER_WEIGHTS if name == OTHER_WEIGHTS else "",
        )
        for name, (run, after) in Checks(logs).all().items()
    ]


def _facts() -> list[Check]:
    """What the driver answers, and what copies and contexts cost."""
    return [
        Check("gpu: what the driver answers", driver_checks.answers, measures=True),
        Check("gpu: the driver takes the counter's kernels", counter_checks.on_device, measures=True),
        Check("gpu: 512 scattered pages in one call", copy_checks.scattered, measures=True, not_by_host=NO_CLOCK),
        Check(
            "gpu: 512 scattered pages by the kernel and by the copy engine",
            copy_kernel_checks.beside_copy_engine,
            measures=True,
        ),
        Check("gpu: a context's memory", copy_checks.context_cost, measures=True, not_by_host=NO_CONTEXT),
    ]


def _faults(logs: Path) -> list[Check]:
    checks: dict[str, Callable[[], str]] = {
        "a killed writer's queued writes": killed_writer_checks.late_writes,
        "compute-sanitizer on the counter's kernels": counter_checks.under_sanitizer,
        "killed prefillers, cuda": partial(pair_checks.killed_prefillers, logs, "cuda"),
        "killed prefillers, staged tcp": partial(pair_checks.killed_prefillers, logs, "tcp"),
        "capture and 1,000 replays": counter_checks.replays,
        "page in host memory is complete, 10,000 times": page_checks.in_host_memory,
        "page in device memory is complete, 10,000 times": page_checks.in_device_memory,
        "8 allocations imported into one process": page_checks.eight_allocations,
    }
    return [Check(f"gpu: {name}", run) for name, run in checks.items()]


def _costs(logs: Path) -> list[Check]:
    checks: dict[str, Callable[[], str]] = {
        "cost of a bump": counter_checks.bump_cost,
        "cost of a step": counter_checks.step_cost,
        "rate of a long prompt, cuda": partial(pair_checks.rate, logs, "cuda"),
        "rate of a long prompt, staged tcp": partial(pair_checks.rate, logs, "tcp"),
    }
    return [Check(f"gpu: {name}", run, measures=True, not_by_host=NO_CLOCK) for name, run in checks.items()]
