"""A decoder that asks the next prefiller when the KV does not come from the first."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
from conftest import EngineMaker
from test_proofs_in_steps import Judge

REQUEST = "chatcmpl-0123456789abcdef-89abcdef"


def two_prefillers(**more: Any) -> dict[str, Any]:
    return {"do_remote_prefill": True, "prefiller": ["one:4000", "two:4000"], **more}


def test_should_ask_the_next_prefiller_when_the_first_does_not_deliver(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, two_prefillers())
    decoder.step()
    decoder.messenger.fail(REQUEST, "no process listens at one:4000")
    decoder.steps(2)
    first, second = decoder.messenger.of_kind("fetch")
    assert [fetch["prefillers"][0]["host"] for fetch in (first, second)] == ["one", "two"]
    assert second["groups"][0]["pages"] == first["groups"][0]["pages"]
    assert second["promptTokenIds"] == first["promptTokenIds"]
    assert 0 < second["limitMillis"] <= 300_000
    assert "no process listens at one:4000" in caplog.text

    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


@pytest.mark.parametrize("first_is_proven", [True, False])
def test_should_compare_a_beginning_from_a_prefiller_that_is_not_proven(
    engine: EngineMaker, first_is_proven: bool
) -> None:
    """The last token of a beginning is computed on both sides only if that was planned before the fetch."""
    decoder, judge = engine("kv_consumer"), Judge()
    decoder.compare_last_tokens(judge)
    if first_is_proven:
        decoder.add("cmpl-a-0-11111111", 700, {"do_remote_prefill": True, "prefiller": "one:4000"})
        decoder.step()
        decoder.messenger.arrive("cmpl-a-0-11111111")
        decoder.steps(3)
    assert len(judge.seen) == first_is_proven
    judge.different = {REQUEST}
    decoder.add(REQUEST, 700, two_prefillers(remote_prompt_tokens=300), max_tokens=3)
    decoder.step()
    decoder.messenger.fail(REQUEST, "no process listens at one:4000")
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.steps(6)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR", "no wrong tokens"
    assert decoder.at_rest()


def test_should_fail_when_no_prefiller_delivers(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, two_prefillers())
    for _ in range(2):
        decoder.step()
        decoder.messenger.fail(REQUEST)
    decoder.steps(2)
    assert len(decoder.messenger.of_kind("fetch")) == 2
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert decoder.at_rest()


def test_should_ask_nobody_for_a_request_that_was_given_up(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, two_prefillers())
    decoder.step()
    decoder.abort(REQUEST)
    decoder.step()
    decoder.messenger.fail(REQUEST)
    decoder.steps(2)
    assert len(decoder.messenger.of_kind("fetch")) == 1
    assert decoder.at_rest()


def test_should_ask_the_next_prefiller_when_the_first_died_in_the_middle(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, two_prefillers())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.steps(2)
    decoder.messenger.fail(REQUEST)
    decoder.step()
    assert len(decoder.messenger.of_kind("fetch")) == 2
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_not_fetch_into_pages_that_the_first_prefiller_may_still_write(
    engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = engine("kv_consumer")
    monkeypatch.setattr(sys.modules["kv_connector.vllm.open_fetch"], "PROOF_WAIT_SECONDS", 0.0)
    decoder.add(REQUEST, 700, two_prefillers())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.steps(2)
    assert len(decoder.messenger.of_kind("fetch")) == 1
    decoder.messenger.fail(REQUEST)
    decoder.steps(2)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert decoder.at_rest()


def test_should_wait_anew_for_the_next_prefiller(engine: EngineMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, two_prefillers())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.step()
    decoder.messenger.fail(REQUEST)
    decoder.step()
    now_seconds = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_seconds + 60)
    decoder.steps(2)
    assert REQUEST in decoder.requests, "the first one's wait for proof is over"
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()
