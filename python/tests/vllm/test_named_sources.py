"""Answers that name their engine: what a router passes on, unchanged, with a conversation's next message."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_decode, remote_prefill

REQUEST = "cmpl-a-0-11111111"
NEXT = "cmpl-b-0-22222222"
PROMPT_TOKENS = 2 * BLOCK_TOKENS + 16
NAMING: Mapping[str, Any] = {
    "transports": ["tcp"],
    "answers_name_source": True,
    "engine_api_url": "http://127.0.0.1:8000",
}


def naming(engine: EngineMaker, kv_role: str = "kv_both", **more: Any) -> SimulatedEngine:
    return engine(kv_role, recompute=True, extra={**NAMING, **more})


def source_of(named: SimulatedEngine) -> dict[str, Any]:
    (messenger,) = named.own_scheduler._half._open.addresses
    return {"remote_kv_source": {"remote_host": messenger.address.host, "remote_port": messenger.address.port}}


def outcomes(asker: SimulatedEngine) -> Counter[str]:
    due = asker.own_scheduler._half._pulls.ended
    return Counter(
        [*(each["outcome"] for each in asker.messenger.of_kind("pullEnded")), *(each.outcome for each in due)]
    )


@pytest.mark.parametrize("params", [None, {}, {"remote_kv_source": None}, {"of": "another connector"}])
def test_should_name_itself_in_the_answer_to_a_plain_request(engine: EngineMaker, params: Any) -> None:
    made = naming(engine)
    made.add(REQUEST, PROMPT_TOKENS, params)
    made.steps(4)
    assert made.answers[REQUEST] == source_of(made)


def test_should_name_nothing_unless_asked_to(engine: EngineMaker) -> None:
    made = naming(engine, answers_name_source=False)
    made.add(REQUEST, PROMPT_TOKENS, None)
    made.steps(4)
    assert made.answers[REQUEST] is None


def test_should_name_itself_as_a_decoder(engine: EngineMaker) -> None:
    """Not the prefiller that it has the prompt from, whose answer named itself."""
    made = naming(engine)
    prefiller = {"remote_kv_source": {"remote_host": "10.0.0.9", "remote_port": 9}}
    made.add(REQUEST, PROMPT_TOKENS, remote_prefill(**prefiller))
    made.steps(2)
    made.messenger.arrive(REQUEST)
    made.steps(4)
    assert made.answers[REQUEST] == source_of(made)
    assert not made.messenger.of_kind("ask")


def test_should_name_itself_as_a_prefiller_beside_what_the_decoder_needs(engine: EngineMaker) -> None:
    plain, made = naming(engine, answers_name_source=False), naming(engine)
    for each in (plain, made):
        each.add(REQUEST, PROMPT_TOKENS, remote_decode())
        each.steps(4)
        each.messenger.release(REQUEST)
    assert made.answers[REQUEST] == plain.answers[REQUEST] | source_of(made)


def test_should_not_name_itself_to_a_client_that_has_left(engine: EngineMaker) -> None:
    made = naming(engine)
    made.add(REQUEST, PROMPT_TOKENS, None)
    made.step()
    made.abort(REQUEST)
    made.steps(2)
    assert made.answers[REQUEST] is None


def test_should_ask_the_engine_that_an_answer_has_named(engine: EngineMaker) -> None:
    source, asker = naming(engine), naming(engine)
    source.add(REQUEST, PROMPT_TOKENS, None)
    source.steps(4)
    asker.own_scheduler._half._pulls.own = ()  # all simulated messengers have one address
    asker.add(NEXT, PROMPT_TOKENS, source.answers[REQUEST])
    asker.step()
    (asked,) = asker.messenger.of_kind("ask")
    named = source_of(source)["remote_kv_source"]
    assert asked["prefillers"] == [{"host": named["remote_host"], "port": named["remote_port"], "engineId": ""}]


def test_should_not_ask_itself(engine: EngineMaker) -> None:
    """A conversation that goes on at the same engine has its beginning in that engine's own cache."""
    made = naming(engine, pulls="always")
    made.add(REQUEST, PROMPT_TOKENS, None)
    made.steps(4)
    made.add(NEXT, PROMPT_TOKENS, made.answers[REQUEST])
    made.steps(4)
    assert not made.messenger.of_kind("ask")
    assert outcomes(made) == {"not_worth": 1}


@pytest.mark.parametrize(
    ("kv_role", "more", "wrong"),
    [
        ("kv_consumer", {}, "kv_role is 'kv_consumer', expected 'kv_both' or 'kv_producer'"),
        ("kv_both", {"pulls": "off"}, "pulls is 'off', expected 'auto' or 'always'"),
        ("kv_both", {"engine_api_url": ""}, "engine_api_url is '', expected the URL of this engine's own HTTP API"),
    ],
)
def test_should_say_why_it_names_nothing(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, kv_role: str, more: Mapping[str, Any], wrong: str
) -> None:
    with caplog.at_level(logging.WARNING):
        made = naming(engine, kv_role, **more)
    assert wrong in caplog.text
    made.add(REQUEST, PROMPT_TOKENS, None)
    made.steps(4)
    assert made.answers[REQUEST] is None
