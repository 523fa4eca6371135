"""What a hand-over adds to the first token of a large model's prompt, beside computing it where it is decoded."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from torch_engine.pair import Pair

from gpu_check.large_model import TOKEN_BYTES, answered, ms_since, plan, prompt
from gpu_check.vllm_checks import ANSWER_LIMIT_SECONDS, started

LENGTHS = (512, 2048, 8192, 24576)
ROUNDS = 3
"""Behind one that is not counted."""


class HandOvers:
    """Each method is a check."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._models = TemporaryDirectory(prefix="gpu-check-models-")

    def all(self) -> dict[str, Callable[[], str]]:
        return {
            "8 billion weights, hand-over, cuda": partial(self.hand_over, "cuda"),
            "8 billion weights, hand-over, staged tcp": partial(self.hand_over, "tcp"),
        }

    def hand_over(self, transport: str) -> str:
        with started(plan(f"large-{transport}", Path(self._models.name), transport), self._logs) as pair:
            shown = [handed_over(pair, length) for length in LENGTHS]
            sent, received = pair.prefiller.rest(), pair.decoder.rest()
        if held := {**sent["held"], **received["held"]}:
            raise AssertionError(f"held at rest: {held}")
        left, arrived = sent["figures"], received["figures"]
        compared = {kind: count for kind, count in arrived["compared"].items() if count}
        if arrived["fetches_failed"] or compared != {"equal": len(LENGTHS) * (ROUNDS + 1)}:
            raise AssertionError(f"{arrived['fetches_failed']:.0f} fetches failed, last tokens compared: {compared}")
        early = f"{left['layers_sent_early']:.0f} of {left['layers_sent']:.0f} layers left before their pass ended"
        return f"{'; '.join(shown)}; {compared['equal']:.0f} last tokens judged equal, {early}"


def handed_over(pair: Pair, length: int) -> str:
    """A prompt that the decoder computes, and another as long that it gets, one by one."""
    alone, prefilled, handed = [], [], []
    for each in range(ROUNDS + 1):
        alone.append(answered(pair.decoder, f"alone-{length}-{each}", prompt(length, 2 * each))[0])
        began = time.perf_counter()
        legs = pair.ask(prompt(length, 2 * each + 1), 1)
        assert legs.prefill is not None
        legs.prefill.result(ANSWER_LIMIT_SECONDS)  # the decoder's first token comes behind it
        prefilled.append(ms_since(began))
        legs.decode.result(ANSWER_LIMIT_SECONDS)
        handed.append(ms_since(began))
    one, prefill, both = (statistics.median(times[1:]) for times in (alone, prefilled, handed))
    return (
        f"{length} tokens ({length * TOKEN_BYTES >> 20} MiB): alone {one:.1f} ms, the prefiller's answer {prefill:.1f},"
        f" the decoder's {both:.1f} = {both / one:.2f}"
    )
