"""vLLM pairs on a GPU whose proof must be right over many requests: equal engines, and engines whose KV scales differ.

Answers are not compared here; `vllm_checks` does that.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch_engine.pair import Legs, Pair

from gpu_check.vllm_checks import ANSWER_LIMIT_SECONDS, PROMPTS, model, options, packed, started, tokens
from gpu_check.vllm_on_torch.plan import VllmPlan

AT_ONCE = 16
PROMPT_TOKENS_MAX = 900
ANSWER_TOKENS = 2
PROVING_TOKENS = 40
"""The first prompt's: long enough to prove its pair."""
GRANT_WAIT_SECONDS = 3.0
"""A refused decoder asks for nothing, so the prefiller keeps what it computed for so long."""
KV_SCALE, OTHER_KV_SCALE = 0.02, 0.04
FP8_SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "naive-quantized",
    "config_groups": {},
    "ignore": ["re:.*"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False},
}
"""Of a checkpoint whose weights are as they were and whose KV is stored in 8 bits, each layer with its own scales."""


@dataclass(frozen=True)
class Equal:
    """Both sides' plan, and what the prefiller has otherwise although it computes the same."""

    transport: str
    plan: Mapping[str, Any]
    prefiller: Mapping[str, Any] = field(default_factory=dict)
    shape: str = "TinyModel"


PAIRS = {
    "bfloat16, cuda": Equal("cuda", {}),
    "bfloat16, passes of 128 and 512 tokens, model runner V1, staged tcp": Equal(
        "tcp", {"runner": 1}, {"chunk_tokens": 128}
    ),
    "float16, breakable graphs, staged tcp": Equal("tcp", {"dtype": "float16", "graphs": "FULL_AND_PIECEWISE"}),
    "float32, cuda": Equal("cuda", {"dtype": "float32"}, {"chunk_tokens": 256}),
    "Mistral's window, bfloat16, cuda": Equal("cuda", {}, shape="TinyMistral"),
    "KV in fp8, cuda": Equal("cuda", {"kv_dtype": "fp8"}),
}


class RightPairs:
    """Each method is a check."""

    def __init__(self, logs: Path, requests: int) -> None:
        self._logs = logs
        self._requests = requests
        self._models = TemporaryDirectory(prefix="gpu-check-models-")

    def all(self) -> dict[str, Callable[[], str]]:
        checks: dict[str, Callable[[], str]] = {
            f"{self._requests} requests of an equal pair, {name}": partial(self.equal, f"equal-{at}", pair)
            for at, (name, pair) in enumerate(PAIRS.items())
        }
        checks["equal KV scales"] = self.equal_scales
        checks["prefiller with other KV scales"] = self.refused_scales
        checks["prefiller with other KV scales, which are excused"] = self.refuted_scales
        return checks

    def equal(self, name: str, pair: Equal) -> str:
        """No fetch fails, and each last token that is compared is equal."""
        packed()
        home = Path(self._models.name)
        plan = VllmPlan(
            name, model(home, 20, pair.shape), options=options(pair.transport), prefix_caching=True, **pair.plan
        )
        with started(plan, self._logs, replace(plan, **pair.prefiller)) as running:
            cached = sum(ended["cached"] or 0 for ended in asked(running, self._requests))
            figures = at_rest(running)
        equal = figures["compared"].pop("equal", 0.0)
        others = {kind: count for kind, count in figures["compared"].items() if count}
        if others or equal != self._requests or figures["fetches_failed"] or not cached:
            raise AssertionError(
                f"{equal:.0f} of {self._requests} last tokens equal, others {others}, {figures['fetches_failed']:.0f}"
                f" fetches failed, {cached} tokens of the prefiller cached"
            )
        return (
            f"{equal:.0f} last tokens judged equal, none otherwise, {figures['pages_received']:.0f} pages,"
            f" {cached} tokens of the prefiller cached, nothing held"
        )

    def equal_scales(self) -> str:
        answered, figures = self._scales("equal-scales", KV_SCALE)
        equal = figures["compared"].get("equal", 0.0)
        if answered != len(PROMPTS) or equal != len(PROMPTS):
            raise AssertionError(f"{answered} of {len(PROMPTS)} were answered; compared {figures['compared']}")
        return f"{equal:.0f} last tokens judged equal, none otherwise"

    def refused_scales(self) -> str:
        """An operator's `model_id` replaces the digest of the weights; the scales have one of their own."""
        answered, figures = self._scales("refused-scales", OTHER_KV_SCALE)
        pages = figures["pages_received"]
        if answered or pages:
            raise AssertionError(f"{answered} of {len(PROMPTS)} were answered, {pages:.0f} pages came")
        return f"{len(PROMPTS)} of {len(PROMPTS)} requests were refused, no page came"

    def refuted_scales(self) -> str:
        """Where the scales are not compared, computed KV shows them."""
        answered, figures = self._scales("refuted-scales", OTHER_KV_SCALE, settings_may_differ=["built.kv_scales"])
        if answered or figures["compared"].get("different") != 1:
            raise AssertionError(f"{answered} of {len(PROMPTS)} were answered; compared {figures['compared']}")
        refused = f"{figures['fetches_refuted']:.0f} fetches were refused then"
        return f"one prefill was refuted, {refused}; no answer is wrong"

    def _scales(self, name: str, prefillers: float, **more: Any) -> tuple[int, dict[str, Any]]:
        """How many requests were answered, and the decoder's figures."""
        packed()
        home = Path(self._models.name)
        given = options("cuda", model_id="the same", grant_wait_seconds=GRANT_WAIT_SECONDS, **more)
        decoder = VllmPlan(name, scaled(home, KV_SCALE), options=given, kv_dtype="fp8")
        with started(decoder, self._logs, replace(decoder, model=scaled(home, prefillers))) as running:
            ended = [running.ask(prompt, ANSWER_TOKENS).decode.result(ANSWER_LIMIT_SECONDS) for prompt in PROMPTS]
            figures = at_rest(running)
        return sum(each["how"] == "length" for each in ended), figures


def asked(pair: Pair, count: int) -> Iterator[dict[str, Any]]:
    """What the prefiller ended with: one request proves the pair, then some are always in flight.

    Half of them begin as an earlier one.
    """
    draw = random.Random(31)
    yield ended(pair.ask(tokens(PROVING_TOKENS, 1), ANSWER_TOKENS))
    waiting: deque[Legs] = deque()
    earlier = [tokens(PROMPT_TOKENS_MAX, 2 + seed) for seed in range(AT_ONCE)]
    for index in range(1, count):
        prompt = tokens(draw.randint(1, PROMPT_TOKENS_MAX), 100 + index)
        if index % 2:
            half = len(prompt) // 2
            prompt = draw.choice(earlier)[:half] + prompt[half:]
        waiting.append(pair.ask(prompt, ANSWER_TOKENS))
        if len(waiting) == AT_ONCE:
            yield ended(waiting.popleft())
    while waiting:
        yield ended(waiting.popleft())


def ended(legs: Legs) -> dict[str, Any]:
    assert legs.prefill is not None
    legs.decode.result(ANSWER_LIMIT_SECONDS)
    return legs.prefill.result(ANSWER_LIMIT_SECONDS)


def at_rest(pair: Pair) -> dict[str, Any]:
    """The decoder's figures; raises where one of the two holds something."""
    sent, received = pair.prefiller.rest(), pair.decoder.rest()
    if held := {**sent["held"], **received["held"]}:
        raise AssertionError(f"held at rest: {held}")
    return dict(received["figures"])


def scaled(home: Path, scale: float) -> str:
    """The model with scales of its KV: twice as large in each layer as in the layer before it."""
    from safetensors.torch import load_file, save_file
    from torch import tensor

    folder = home / f"scaled-{scale}"
    if not folder.exists():
        shutil.copytree(model(home, 20), folder)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model.safetensors")
        for layer in range(config["num_hidden_layers"]):
            for part in "kv":
                weights[f"model.layers.{layer}.self_attn.{part}_proj.{part}_scale"] = tensor(scale * 2**layer)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": FP8_SCHEME}), "utf-8")
    return str(folder)
