"""The engine in plain torch, a prefiller and a decoder, on a CPU and on a GPU with graphs."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch_engine.everyday import Asked, everyday, run
from torch_engine.model import Model, plain_answer
from torch_engine.pair import EngineEnded, Pair, started
from torch_engine.plan import EnginePlan, ModelShape

from gpu_check.report import Skipped

REQUESTS = 24
SHAPE = ModelShape()
ON_GPU = ModelShape(layers=8, hidden=256, heads=8, kv_heads=2, head_size=64, inner=512, vocabulary=4096)
NO_DEVICE_MEMORY = re.compile(r"[^\n]*is reached by none of the transports[^\n]*")
"""What a messenger says whose transports do not reach a GPU's memory."""


def on_cpu(logs: Path) -> str:
    plan = EnginePlan("check-cpu", "none", options=options("tcp"))
    with started(plan, logs / "cpu") as pair:
        return compared(pair, SHAPE, "cpu", early=False)


def in_host_memory(logs: Path) -> str:
    """Pages in page-locked memory of the host: all that is asked of transports is what they have."""
    return on_gpu(logs / "host", EnginePlan("check-host", "none", kv_in_host_memory=True, options=options("tcp")))


def in_device_memory(logs: Path, transport: str, *, decoder_on_cpu: bool = False) -> str:
    plan = EnginePlan("check-device", "none", options=options(transport))
    try:
        return on_gpu(logs / f"device-{transport}", plan, decoder_on_cpu=decoder_on_cpu)
    except EngineEnded as ended:
        if refusal := NO_DEVICE_MEMORY.search(str(ended)):
            raise Skipped(f"not built: {refusal[0]}") from None
        raise


def scattered_copies() -> str:
    raise Skipped("not built: the wheel has no call that copies pages between GPUs")


def on_gpu(logs: Path, plan: EnginePlan, *, decoder_on_cpu: bool = False) -> str:
    """Passes stand for a millisecond after each layer, so that layers can leave before their pass has ended."""
    made = replace(plan, device="cuda", graphs=True, held=True, shape=ON_GPU)
    with started(made, logs, decoder_on_cpu=decoder_on_cpu) as pair:
        return compared(pair, ON_GPU, "cuda", early=True)


def options(transport: str) -> dict[str, object]:
    return {"transports": [transport], "timelines": "off", "gpu": "unproven", "aot_cache": False}


def compared(pair: Pair, shape: ModelShape, device: str, *, early: bool) -> str:
    import torch

    model = Model(shape, device)

    @functools.cache
    def answer(prompt: tuple[int, ...], count: int) -> list[int]:
        with torch.inference_mode():
            return plain_answer(model, list(prompt), count, device)

    def right(prompt: Sequence[int], count: int) -> list[int]:
        return answer(tuple(prompt), count)

    bursts: list[list[Asked]] = everyday(11, REQUESTS, shape.vocabulary)
    seen = run(pair, bursts, right)
    if seen.wrong:
        raise AssertionError(f"{len(seen.wrong)} of {REQUESTS} answers are wrong: {seen.wrong[0]}")
    sent, received = pair.prefiller.rest(), pair.decoder.rest()
    held = {**sent["held"], **received["held"]}
    if held:
        raise AssertionError(f"at rest {held} is held")
    figures = sent["figures"]
    if not received["figures"]["pages_received"]:
        raise AssertionError("no page was received")
    if early and not figures["layers_sent_early"]:
        raise AssertionError(f"none of {figures['layers_sent']:.0f} layers left before its pass ended")
    return (
        f"{seen.right} answers right, {seen.left} clients left, {received['figures']['pages_received']:.0f} pages,"
        f" {figures['layers_sent_early']:.0f} of {figures['layers_sent']:.0f} layers left before their pass ended"
    )
