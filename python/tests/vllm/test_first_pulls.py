"""The first pull of a pair is computed here and compared: no token of it is computed on both sides otherwise."""

from __future__ import annotations

from collections import Counter

import pytest
from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine
from test_shadows_in_steps import Judge

HINT = {"remote_kv_source": {"remote_host": "127.0.0.1", "remote_port": 14580}}
PROMPT_TOKENS = 3 * BLOCK_TOKENS + 16
HELD_TOKENS = 2 * BLOCK_TOKENS


def pulled(asker: SimulatedEngine, name: str) -> str:
    """What the messenger calls the fetch of a request whose beginning was offered."""
    asker.add(name, PROMPT_TOKENS, HINT)
    asker.step()
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    return str(asker.messenger.of_kind("fetch")[-1]["request"])


@pytest.mark.parametrize(("verdict", "result"), [("equal", "arrived"), ("different", "unproven")])
def test_should_pull_only_from_a_pair_that_was_compared(engine: EngineMaker, verdict: str, result: str) -> None:
    asker = engine("kv_both", recompute=True)
    half = asker.own_scheduler._half
    half._pulls._now_seconds = lambda: 0.0  # no answer is late
    judge = Judge(verdict)
    asker.compare_last_tokens(judge)
    shadow = pulled(asker, "first")
    assert shadow != "first", "the engine does not know of the fetch"
    asker.steps(4)
    assert asker.ended["first"].name == "FINISHED_LENGTH_CAPPED", "it does not wait for the comparison"
    asker.messenger.arrive(shadow)
    asker.steps(4)
    assert len(judge.seen) == 1
    second = pulled(asker, "second")
    if second == "second":
        asker.messenger.arrive(second)
    asker.steps(6)
    assert Counter(each["outcome"] for each in asker.messenger.of_kind("pullEnded")) == {"proves": 1, result: 1}
    assert (len(asker.messenger.of_kind("fetch")), len(asker.messenger.of_kind("decline"))) == (
        (2, 0) if result == "arrived" else (1, 1)
    )
    assert asker.at_rest()
