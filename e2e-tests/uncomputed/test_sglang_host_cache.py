"""Pairs of real SGLang whose prefiller keeps what it evicts in host memory: every row that is read is the right one.

What comes back from there is loaded layer by layer while the pass runs that reads it, and leaves for the decoder with
the layers of that pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_check.sglang_on_torch.servers import started

from uncomputed.sglang_sides import LAUNCHER, UncomputedSglang
from uncomputed.test_sglang import NO_GRAPHS, Case, asked

POOL_TOKENS = 3072
"""Of the prefiller: less than all prompts have, so that the first ones have been evicted when they come again."""
ROUNDS = 3
CASES = {
    "cuda": Case(settings={"radix": True}),
    "tcp": Case("tcp", NO_GRAPHS | {"radix": True}),
    "no-overlap-cuda": Case(settings=NO_GRAPHS | {"radix": True, "overlap": False}),
    "small-chunks-cuda": Case(settings={"radix": True, "chunk_tokens": 128}),
}


@pytest.fixture(scope="module", autouse=True)
def uncomputed_launcher() -> Iterator[None]:
    yield
    LAUNCHER.stop()


@pytest.mark.at_length
@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_rows_are_right_where_prompts_come_back_from_host_memory(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = case.plan(f"host-cache-{request.node.callspec.id}")
    prefiller = replace(plan, pool_tokens=POOL_TOKENS, host_cache=True)
    decoder = replace(plan, radix=False)  # each prompt comes whole
    with started(decoder, tmp_path, UncomputedSglang, prefiller) as pair:
        for _ in range(ROUNDS):
            asked(pair)
        sent, received = pair.prefiller.rest(), pair.decoder.rest()
    print(f"{plan.name}: {sent}, {received}")
    assert sent["held"] | received["held"] == {}
    for figures in (sent["figures"], received["figures"]):
        assert figures["rows_wrong"] == 0, figures["first_wrong"]
        assert figures["fetches_failed"] == 0
    assert sent["figures"]["loaded_bytes"] > 0, "no prompt came back from host memory"
    assert sent["figures"]["layers_sent_early"] > 0
