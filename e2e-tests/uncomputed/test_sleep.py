"""Pairs of real vLLM whose sides sleep: KV memory goes and comes back, and every row that is read is the right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_check.vllm_checks import AT_ONCE, ONE_BY_ONE, SHARED
from torch_engine.pair import Pair

from uncomputed.pair import LIMIT_SECONDS, Engines, started
from uncomputed.test_vllm import Case, ended, flash, triton

ANSWER = 6
KV_BYTES = 96 << 20
LEVEL = 1

CASES = {
    "cuda": Case(settings=triton(prefix_caching=True, sleeps=True, kv_bytes=KV_BYTES)),
    "tcp": Case("tcp", flash(graphs="FULL_AND_PIECEWISE", sleeps=True, kv_bytes=KV_BYTES)),
}


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_pair_serves_before_between_and_after_sleeps(
    case: Case, other_engines: Engines, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with started(case.plan(f"sleep-{request.node.callspec.id}"), tmp_path, other_engines) as pair:
        sides = {"decoder": pair.decoder, "prefiller": pair.prefiller}
        for prompt in ONE_BY_ONE:
            ended(pair.ask(prompt, ANSWER), ANSWER)
        for asleep in (["decoder"], ["prefiller"], ["prefiller", "decoder"]):
            settled(pair)
            for side in asleep:
                given_back(sides[side])
            waiting = pair.ask(AT_ONCE[0], ANSWER) if asleep == ["decoder"] else None
            if asleep == ["prefiller"]:
                refused(pair)
            for side in asleep:
                taken_again(sides[side])
            if waiting is not None:
                ended(waiting, ANSWER)
            for legs in [pair.ask(prompt, ANSWER) for prompt in [*AT_ONCE, *SHARED]]:
                ended(legs, ANSWER)
        settled(pair)


def settled(pair: Pair) -> None:
    """Both sides at rest, and all rows right so far."""
    for side in (pair.prefiller, pair.decoder):
        rest = side.rest()
        assert rest["held"] == {}
        assert rest["figures"]["rows_wrong"] == 0, rest["figures"]["first_wrong"]


def given_back(side: Any) -> None:
    """The device has the memory of KV again."""
    before = side.free_bytes()
    after = side.sleep(LEVEL)
    assert after - before >= KV_BYTES
    assert side.sleep(LEVEL) == after


def taken_again(side: Any) -> None:
    before = side.free_bytes()
    assert before - side.wake() >= KV_BYTES
    side.wake()


def refused(pair: Pair) -> None:
    host, port = pair.prefiller.where()
    named = {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": host, "remote_port": port}
    answer = pair.decoder.add("to-one-asleep", AT_ONCE[1], ANSWER, named).result(LIMIT_SECONDS)
    assert (answer["how"], answer["tokens"]) == ("error", [])
    assert "sleeps, and its KV memory was given back: wake it up" in pair.decoder.log.read_text("utf-8")
