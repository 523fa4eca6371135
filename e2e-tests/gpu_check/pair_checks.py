"""The engine in plain torch, a prefiller and a decoder, on a CPU and on a GPU with graphs."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch_engine.everyday import Asked, everyday, run
from torch_engine.pair import ANSWER_LIMIT_SECONDS, EngineEnded, EngineProcess, Pair, started
from torch_engine.plan import EnginePlan, ModelShape

from gpu_check.report import Skipped

if TYPE_CHECKING:
    from torch_engine.model import Model

REQUESTS = 24
CAPTURES = 500
KILLS = 6
GUEST_NUMBERS = 1000
SHAPE = ModelShape()
ON_GPU = ModelShape(layers=8, hidden=256, heads=8, kv_heads=2, head_size=64, inner=512, vocabulary=4096)
LONG_TOKENS = 4000
LONG_SHAPE = ModelShape(layers=32, hidden=256, heads=8, kv_heads=8, head_size=128, inner=256, vocabulary=4096)
LONG: dict[str, Any] = {
    "shape": LONG_SHAPE,
    "blocks": 600,
    "requests_max": 1,
    "chunk_tokens": 4096,
    "tokens_max": 4096,
}
"""As much KV as a model of 8 billion parameters has for as many tokens, in 32-bit numbers."""
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
    named = [transport, "tcp"] if transport == "shm" else [transport]  # shm does not land in a device's memory
    plan = EnginePlan("check-device", "none", options=options(*named))
    try:
        return on_gpu(logs / f"device-{transport}", plan, decoder_on_cpu=decoder_on_cpu)
    except EngineEnded as ended:
        if refusal := NO_DEVICE_MEMORY.search(str(ended)):
            raise Skipped(f"not built: {refusal[0]}") from None
        raise


def capturing(logs: Path, transport: str) -> str:
    """Graphs are captured while pages are copied, and while a peer connects and goes.

    In torch's default mode, in which CUDA ends a capture for an unsafe call of any thread of the process.
    """
    plan = EnginePlan("check-capture", "none", options=options(transport), captures_between_steps=True)
    folder = logs / f"capture-{transport}"
    made = replace(plan, device="cuda", graphs=True, held=True, shape=ON_GPU)
    with started(made, folder) as pair:
        seen = compared(pair, ON_GPU, "cuda", early=False)
        with_traffic = [int(side.rest()["figures"]["captured"]) for side in (pair.prefiller, pair.decoder)]
        captured = pair.prefiller.capture(CAPTURES)
        guest = replace(pair.decoder.plan, name="check-capture-guest", captures_between_steps=False)
        with EngineProcess(guest, folder / "guest.log") as decoder:
            decoder.where()
            legs = Pair(pair.prefiller, decoder, first=GUEST_NUMBERS).ask([1, 2, 3] * 30, 4)
            captured.result(ANSWER_LIMIT_SECONDS)
            legs.decode.result(ANSWER_LIMIT_SECONDS)
            again = pair.prefiller.capture(CAPTURES)
        again.result(ANSWER_LIMIT_SECONDS)
    return (
        f"{with_traffic[0]} captures beside pages that left, {with_traffic[1]} beside pages that arrived,"
        f" {2 * CAPTURES} while a peer connected and went; {seen}"
    )


def killed_prefillers(
    logs: Path, transport: str, device: Literal["cpu", "cuda"] = "cuda", shape: ModelShape = ON_GPU
) -> str:
    """Prefillers are killed one after another beneath requests; the decoder answers rightly or fails, and lives on."""
    folder = logs / f"killed-{transport}"
    given = {**options(transport), "silence_limit_seconds": 2}
    plan = EnginePlan("check-killed", "none", device=device, graphs=device == "cuda", shape=shape, options=given)
    from torch_engine.model import Model

    model = Model(shape, device)
    right = failed = 0
    with EngineProcess(replace(plan, name="check-killed-decoder", kv_role="kv_consumer"), folder / "d.log") as decoder:
        for number in range(KILLS):
            made = replace(plan, name=f"check-killed-{number}", kv_role="kv_producer", held=device == "cuda")
            prefiller = EngineProcess(made, folder / f"p{number}.log")
            pair = Pair(prefiller, decoder, first=number * GUEST_NUMBERS)
            prompts = [[(at * (number + 3) + each) % shape.vocabulary for at in range(120)] for each in range(8)]
            sent = [pair.ask(prompt, 3) for prompt in prompts]
            sent[number].decode.result(ANSWER_LIMIT_SECONDS)
            prefiller.kill()
            ends = [legs.decode.result(ANSWER_LIMIT_SECONDS) for legs in sent]
            for prompt, end in zip(prompts, ends, strict=True):
                if end["how"] != "FINISHED_LENGTH_CAPPED":
                    failed += 1
                elif end["tokens"] == plain(model, prompt, 3, device):
                    right += 1
                else:
                    raise AssertionError(f"after a kill {end['tokens']} was answered")
        held = decoder.rest()["held"]
        if held:
            raise AssertionError(f"at rest {held} is held")
    return f"{KILLS} prefillers killed: {right} answers right, {failed} requests failed, nothing held"


def plain(model: Model, prompt: Sequence[int], count: int, device: str) -> list[int]:
    import torch
    from torch_engine.model import plain_answer

    with torch.inference_mode():
        return plain_answer(model, list(prompt), count, device)


def rate(logs: Path, transport: str) -> str:
    """The product's whole path: a long prompt that the prefiller has in its cache, fetched by a decoder anew.

    Twice, since the first fetch of so many pages also makes what later ones find made.
    """
    plan = EnginePlan("check-rate", "none", options=options(transport), **LONG)
    folder = logs / f"rate-{transport}"
    with started(replace(plan, device="cuda"), folder) as pair:
        prompts = [[(7 * at + number) % LONG_SHAPE.vocabulary for at in range(LONG_TOKENS)] for number in range(2)]
        for prompt in prompts:
            pair.ask(prompt, 1).decode.result(ANSWER_LIMIT_SECONDS)
        guest = replace(pair.decoder.plan, name="check-rate-guest")
        with EngineProcess(guest, folder / "guest.log") as decoder:
            decoder.where()
            again = Pair(pair.prefiller, decoder, first=GUEST_NUMBERS)
            took = []
            for prompt in ([5] * 40, *prompts):
                again.ask(prompt, 1).decode.result(ANSWER_LIMIT_SECONDS)
                took.append(decoder.rest()["figures"]["fetch_seconds"])
    length_bytes = LONG_TOKENS * LONG_SHAPE.layers * 2 * LONG_SHAPE.kv_heads * LONG_SHAPE.head_size * 4
    rates = [length_bytes / (last - first) / 1e9 for first, last in itertools.pairwise(took)]
    pages = f"{LONG_TOKENS // plan.block_tokens * LONG_SHAPE.layers} pages, {length_bytes / 2**30:.2f} GiB"
    return f"{pages}: {rates[0]:.1f} GB/s at first, then {rates[1]:.1f} GB/s from fetch to last immediate"


def on_gpu(logs: Path, plan: EnginePlan, *, decoder_on_cpu: bool = False) -> str:
    """Passes stand for a millisecond after each layer, so that layers can leave before their pass has ended."""
    made = replace(plan, device="cuda", graphs=True, held=True, shape=ON_GPU)
    with started(made, logs, decoder_on_cpu=decoder_on_cpu) as pair:
        return compared(pair, ON_GPU, "cuda", early=True)


def options(*transports: str) -> dict[str, object]:
    return {"transports": list(transports), "timelines": "off", "gpu": "unproven", "aot_cache": False}


def compared(pair: Pair, shape: ModelShape, device: str, *, early: bool) -> str:
    from torch_engine.model import Model

    model = Model(shape, device)

    @functools.cache
    def answer(prompt: tuple[int, ...], count: int) -> list[int]:
        return plain(model, prompt, count, device)

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
