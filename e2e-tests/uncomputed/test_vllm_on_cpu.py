"""A vLLM on a CUDA that computes nothing and one on the CPU: the same model and geometry, and other bytes in a page.

vLLM's attention on a CPU packs keys as its kernels multiply them, so the two refuse each other over any transport.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_check.vllm_checks import AT_ONCE, VllmProcess
from gpu_check.vllm_on_torch.plan import DECODER, EAGER, PREFILLER, VllmPlan
from torch_engine.pair import Pair

from uncomputed.pair import LIMIT_SECONDS, Engines, Uncomputed
from uncomputed.test_vllm import Case, flash

pytestmark = pytest.mark.at_length

BLOCK_TOKENS = 32
"""vLLM's attention on a CPU wants blocks of this size."""
NOT_COMPUTED = "built.rope.RotaryEmbedding.64.64.cos_sin_cache"
"""What the device's side would have computed when it started: all zeros there."""
WORKERS = "parallel_config.worker_cls"
PAGES = "page format"
OF_DEVICE = {WORKERS: "vllm.v1.worker.gpu_worker.Worker", PAGES: "FLASH_ATTN/pages1"}
OF_CPU = {WORKERS: "vllm.v1.worker.cpu_worker.CPUWorker", PAGES: r"CPU_ATTN:\w+/pages1"}
"""As patterns: the kernels differ with the processor."""
ANSWER = 6


class VllmOnCpu(VllmProcess):
    """vLLM as it is installed, on the CPU."""

    module = "gpu_check.vllm_on_torch"
    start_limit_seconds = end_limit_seconds = answer_limit_seconds = LIMIT_SECONDS


def plan_of(transports: list[str], excused: list[str]) -> VllmPlan:
    options = {"transports": transports, "settings_may_differ": [NOT_COMPUTED, *excused]}
    return replace(Case(settings=flash(graphs=EAGER), options=options).plan("on-cpu"), block_tokens=BLOCK_TOKENS)


def on_cpu(plan: VllmPlan) -> VllmPlan:
    return replace(plan, attention="CPU_ATTN", runner=1, name=f"{plan.name}-cpu")


@pytest.mark.parametrize(
    ("role_on_cpu", "excused", "named"),
    [(DECODER, [], WORKERS), (DECODER, [WORKERS], PAGES), (PREFILLER, [WORKERS], PAGES)],
)
def test_pages_of_a_cpu_and_of_a_device_are_refused_by_one_sentence(
    role_on_cpu: str, excused: list[str], named: str, engines: Engines, tmp_path: Path
) -> None:
    of_device, of_cpu = plan_of(["shm", "tcp"], excused), on_cpu(plan_of(["shm"], excused))
    other_role = PREFILLER if role_on_cpu == DECODER else DECODER
    with (
        Uncomputed(replace(of_device, role=other_role), tmp_path / "device.log", engines, {}) as device,
        VllmOnCpu(replace(of_cpu, role=role_on_cpu), tmp_path / "cpu.log") as cpu,
    ):
        for side in (device, cpu):
            side.ready()
        pair = Pair(device, cpu) if role_on_cpu == DECODER else Pair(cpu, device)
        legs = pair.ask(AT_ONCE[1], ANSWER)
        answer: dict[str, Any] = legs.decode.result(LIMIT_SECONDS)
        rest = pair.decoder.rest()
    assert (answer["how"], answer["tokens"]) == ("error", [])
    assert rest["figures"]["pages_received"] == 0
    prefillers, decoders = (OF_DEVICE, OF_CPU) if role_on_cpu == DECODER else (OF_CPU, OF_DEVICE)
    sentence = f"the prefiller's {named} is {prefillers[named]}, the decoder's is {decoders[named]}: start both"
    for log in ("device.log", "cpu.log"):
        assert re.search(sentence, (tmp_path / log).read_text("utf-8"))


def test_what_is_refused_would_be_wrong() -> None:
    """What vLLM's own operator on a CPU writes is not a token's key with its value behind it."""
    from vllm import _custom_ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    heads, size, tokens = 2, 64, 20
    pages = torch.zeros(2, heads, BLOCK_TOKENS, 2 * size, dtype=torch.bfloat16)
    keys = torch.arange(tokens * heads * size).reshape(tokens, heads, size).remainder(251).add(1).to(pages.dtype)
    halves = pages.view(2, heads, 2 * BLOCK_TOKENS, size).chunk(2, dim=2)
    isa = _get_attn_isa(pages.dtype, BLOCK_TOKENS, size, "auto")
    slots = torch.arange(BLOCK_TOKENS, BLOCK_TOKENS + tokens)
    _custom_ops.cpu_attn_reshape_and_cache(keys, -keys, *halves, slots, isa)
    of_a_device = torch.zeros_like(pages)
    of_a_device[1, :, :tokens] = torch.cat([keys, -keys], dim=2).transpose(0, 1)
    assert pages[1].any()
    differ = (pages[1] != of_a_device[1]).sum().item()
    assert differ > heads * tokens * size
    assert sorted(pages[1].flatten().tolist()) == sorted(of_a_device[1].flatten().tolist()), (
        "the same numbers elsewhere"
    )
