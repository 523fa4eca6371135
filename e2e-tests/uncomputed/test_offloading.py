"""Pairs of real vLLM beside its own OffloadingConnector: every row is right, whichever connector has brought it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, SHARED
from torch_engine.pair import Pair

from uncomputed.pair import Engines, started
from uncomputed.test_vllm import STAGED, Case, ended, flash, triton

ANSWER = 6
OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"cpu_bytes_to_use": 64 << 20},
}
CASES = {
    "cuda": Case(settings=triton(prefix_caching=True)),
    "tcp": Case("tcp", flash(prefix_caching=True)),
    "ranks-2-2-cuda": Case(settings=flash(prefix_caching=True), ranks=(2, 2)),
}
ORDERS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.at_length
@pytest.mark.parametrize(
    "ours_first", ORDERS, ids=lambda order: "-".join("ours" if each else "theirs" for each in order)
)
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_rows_are_right_whichever_connector_brings_them(
    case: Case, ours_first: tuple[bool, bool], engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = replace(case.plan(f"offloading-{request.node.callspec.id}"), beside=OFFLOADING)
    prefiller, decoder = (
        replace(plan, asks_ours_first=first, ranks=ranks) for first, ranks in zip(ours_first, case.ranks, strict=True)
    )
    with started(decoder, tmp_path, engines, prefiller) as pair:
        first = settled(pair)
        for side in (pair.prefiller, pair.decoder):
            side.forget()  # type: ignore[attr-defined]
        second = settled(pair)
    judged(ours_first, case.transport, first, second)


def settled(pair: Pair) -> list[dict[str, Any]]:
    """All prompts through the pair; the figures of both sides, the prefiller first."""
    for prompt in ONE_BY_ONE:
        ended(pair.ask(prompt, ANSWER), ANSWER)
    for legs in [pair.ask(prompt, ANSWER) for prompt in [*AT_ONCE, *SHARED]]:
        ended(legs, ANSWER)
    figures = []
    for side in (pair.prefiller, pair.decoder):
        rest = side.rest()
        assert rest["held"] == {}
        assert rest["figures"]["rows_wrong"] == 0, rest["figures"]["first_wrong"]
        figures.append(rest["figures"])
    return figures


def judged(
    ours_first: tuple[bool, bool], transport: str, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    """Both connectors had their part, in the order in which vLLM asks them."""
    print(first, second)
    for before, after in zip(first, second, strict=True):
        assert before["offloaded_bytes"] > 0
        assert after["fetches_failed"] == 0
    prefiller, decoder = second
    assert prefiller["loaded_bytes"] > 0, "the prefiller's prompts were offloaded, and no longer on its device"
    assert transport in STAGED or first[0]["layers_sent_early"], "no layer left before its pass ended"
    fetched_again = decoder["pages_received"] - first[1]["pages_received"]
    assert bool(fetched_again) == ours_first[1]
    assert bool(decoder["loaded_bytes"]) != ours_first[1]
