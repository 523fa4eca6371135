"""Two vLLMs on a CUDA that computes nothing, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_check.vllm_checks import VllmProcess
from gpu_check.vllm_on_torch.plan import DECODER, PREFILLER, VllmPlan
from torch_engine.pair import Pair

FIND = Path(__file__).resolve().parents[2] / "examples" / "setup" / "find-uncomputed-cuda"

LIMIT_SECONDS = 3600.0
"""For whatever a busy machine makes slow."""


def environment(stand_ins: Path) -> dict[str, str]:
    """Of a process that has the stand-ins in place of CUDA."""
    preloaded = ("libcuda.so.1", "libcudart.so.13", "libuncomputedblas.so")
    return {
        "LD_PRELOAD": ":".join(str(stand_ins / name) for name in preloaded),
        "KV_MESSENGER_UNCOMPUTED_ROWS": str(stand_ins / "librows.so"),
        "TRITON_LIBCUDA_PATH": str(stand_ins),
        "STAND_IN_DEVICES": "1",
    }


def stand_ins() -> Path:
    """Their folder; skips the test that asks where they cannot be made."""
    found = subprocess.run([FIND, sys.executable], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return Path(found.stdout.strip())


class Uncomputed(VllmProcess):
    module = "uncomputed"
    start_limit_seconds = end_limit_seconds = answer_limit_seconds = LIMIT_SECONDS
    path = ()  # vLLM is that of this environment

    def __init__(self, plan: VllmPlan, log: Path, stand_ins: Path) -> None:
        self.environment = environment(stand_ins)
        super().__init__(plan, log)


@contextmanager
def started(plan: VllmPlan, logs: Path, stand_ins: Path) -> Iterator[Pair]:
    """A pair by one plan, whose name and role are filled in."""
    with ExitStack() as entered:
        sides = [
            entered.enter_context(
                Uncomputed(replace(plan, name=f"{plan.name}-{side}", role=role), logs / f"{side}.log", stand_ins)
            )
            for side, role in (("prefiller", PREFILLER), ("decoder", DECODER))
        ]
        for side in sides:
            side.ready()
        yield Pair(sides[0], sides[1])
