"""A conversation on a CUDA that computes nothing: two vLLMs pull the beginning of each message from each other."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_check.pull_checks import named
from gpu_check.vllm_checks import PAGE_TOKENS, tokens
from gpu_check.vllm_on_torch.plan import BOTH

from uncomputed.pair import LIMIT_SECONDS, Engines, Uncomputed
from uncomputed.rows import TOKEN
from uncomputed.test_vllm import Case, triton

MESSAGES = 5
NEW_TOKENS, ANSWER_TOKENS = 200, 6
PULLS = {"pulls": "always"}
CASES = {
    "cuda": Case(settings=triton(prefix_caching=True), options=PULLS),
}
MORE_CASES = {
    "tcp-breakable-graphs": Case("tcp", triton(prefix_caching=True, graphs="FULL_AND_PIECEWISE"), options=PULLS),
    "ranks-2-1-tcp": Case("tcp", triton(prefix_caching=True), ranks=(2, 1), options=PULLS | {"messenger_per": "node"}),
    "ranks-2-2-tcp": Case("tcp", triton(prefix_caching=True), ranks=(2, 2), options=PULLS),
    "ranks-1-2-tcp": Case("tcp", triton(prefix_caching=True), ranks=(1, 2), options=PULLS),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=[pytest.mark.at_length] * (name in MORE_CASES))
        for name, case in (CASES | MORE_CASES).items()
    ],
)
def test_rows_of_what_was_pulled_are_those_of_its_prompt(case: Case, engines: Engines, tmp_path: Path) -> None:
    with ExitStack() as entered:
        both = [entered.enter_context(one) for one in started(case, engines, tmp_path)]
        conversation = converse(both)
        ends = [one.rest() for one in both]
    for end, ranks in zip(ends, case.ranks, strict=True):
        assert end["held"] == {}
        assert end["figures"]["rows_wrong"] == 0, end["figures"]["first_wrong"]
        assert end["figures"]["fetches_failed"] == 0
        assert end["figures"]["rows_read"] > ranks * case.model.layer_count * len(conversation)
    known_tokens = len(conversation) - NEW_TOKENS - ANSWER_TOKENS - 1
    pulled = [end["figures"]["pages_received"] / ranks for end, ranks in zip(ends, case.ranks, strict=True)]
    assert sum(pulled) == known_tokens // PAGE_TOKENS * case.model.layer_count, "each page once"
    assert min(pulled) > 0


def started(case: Case, engines: Engines, logs: Path) -> list[Uncomputed]:
    plan = case.plan("pulls")
    both = [
        Uncomputed(replace(plan, name=f"pulls-{at}", role=BOTH, ranks=ranks), logs / f"{at}.log", engines, case.driver)
        for at, ranks in enumerate(case.ranks)
    ]
    for one in both:
        one.ready()
    return both


def converse(both: list[Uncomputed]) -> list[int]:
    """All of it. Each message goes to the engine that has not answered the one before, which is named as its source."""
    conversation: list[int] = []
    for index in range(MESSAGES):
        here, there = both[index % 2], both[1 - index % 2]
        known_tokens = max(0, len(conversation) - 1) // PAGE_TOKENS * PAGE_TOKENS
        conversation += tokens(NEW_TOKENS, index)
        answer = here.add(f"cmpl-{index}-0-00000000", conversation, ANSWER_TOKENS, named(there)).result(LIMIT_SECONDS)
        assert answer["tokens"] == [TOKEN] * ANSWER_TOKENS
        assert answer["cached"] == known_tokens, f"of message {index}, in the cache or pulled"
        conversation += answer["tokens"]
    return conversation
