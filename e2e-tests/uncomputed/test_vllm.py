"""Pairs of real vLLM on a CUDA that computes nothing: every row that attention would read is the one it has to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import make_model
import pytest
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, PAGES, PROMPTS, SHARED, options
from gpu_check.vllm_on_torch.plan import EAGER, VllmPlan
from torch_engine.pair import Legs

from uncomputed.pair import LIMIT_SECONDS, stand_ins, started
from uncomputed.rows import TOKEN

ANSWER = 6
LAYERS = 4
CACHE = Path.home() / ".cache" / "kv-messenger"
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "full-graphs-cuda": ("cuda", {"graphs": "FULL", "prefix_caching": True}),
    "breakable-graphs-tcp": ("tcp", {"graphs": "FULL_AND_PIECEWISE"}),
    "no-graphs-cuda": ("cuda", {"graphs": EAGER}),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rows_that_a_decoder_reads_are_those_of_its_prompts(name: str, tmp_path: Path) -> None:
    transport, settings = PAIRS[name]
    model = str(make_model.cached_model(CACHE, make_model.TinyModel(seed=20)))
    given = options(transport, last_token_check="off")  # what it compares is not computed
    plan = VllmPlan(name, model, options=given, kv_bytes=96 << 20, **settings)
    with started(plan, tmp_path, stand_ins()) as pair:
        for prompt in ONE_BY_ONE:
            ended(pair.ask(prompt, ANSWER))
        for legs in [pair.ask(prompt, ANSWER) for prompt in AT_ONCE]:
            ended(legs)
        for prompt in SHARED:
            ended(pair.ask(prompt, ANSWER))
        sides = pair.prefiller.rest(), pair.decoder.rest()
    assert {**sides[0]["held"], **sides[1]["held"]} == {}
    sent, received = sides[0]["figures"], sides[1]["figures"]
    for figures in (sent, received):
        assert figures["rows_wrong"] == 0, figures["first_wrong"]
    assert sent["rows_written"] >= LAYERS * sum(map(len, PROMPTS)) - LAYERS * cached_tokens(plan)
    assert received["rows_read"] > LAYERS * ANSWER * sum(map(len, PROMPTS))
    assert received["fetches_failed"] == 0
    assert received["pages_received"] == PAGES or (plan.prefix_caching and 0 < received["pages_received"] < PAGES)
    assert plan.graphs == EAGER or (sent["replays"] and received["replays"])


def cached_tokens(plan: VllmPlan) -> int:
    """At most so many tokens of the shared beginnings need no pass of their own."""
    return sum(map(len, SHARED)) if plan.prefix_caching else 0


def ended(legs: Legs) -> None:
    assert legs.prefill is not None
    legs.prefill.result(LIMIT_SECONDS)
    assert legs.decode.result(LIMIT_SECONDS)["tokens"] == [TOKEN] * ANSWER
