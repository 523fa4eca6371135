"""Requests of vLLM's Responses API, whose two legs have no id in common: their prompt names the transfer."""

from __future__ import annotations

import logging

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import remote_decode, remote_prefill

from kv_connector.naming.prompt_digest import prompt_digest

ON_PREFILLER = "resp_8687bf4954dba35f_0-9a5ac5f2"
ON_DECODER = "resp_a245b86d30ba8cd6_0-a07be602"
ROUTED = "___prefill_addr_h:1___decode_addr_h:2_0123456789abcdef0123456789abcdef"


def test_should_meet_by_the_prompt_when_both_legs_are_sent_at_once(engine: EngineMaker) -> None:
    prefiller, decoder = engine("kv_producer"), engine("kv_consumer")
    prefiller.add(ON_PREFILLER, 200, remote_decode())
    prefiller.step()
    decoder.add(ON_DECODER, 200, remote_prefill(remote_request_id=ROUTED))
    decoder.step()
    named = f"prompt-{prompt_digest(range(200))}"
    assert prefiller.messenger.of_kind("announce")[0]["transfer"] == named
    assert {chunk["transfer"] for step in prefiller.messenger.of_kind("step") for chunk in step["chunks"]} == {named}
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == [named]


def test_should_meet_by_the_prefiller_s_answer_as_others_do(engine: EngineMaker) -> None:
    prefiller, decoder = engine("kv_producer"), engine("kv_consumer")
    prefiller.add(ON_PREFILLER, 200, remote_decode())
    prefiller.steps(3)
    decoder.add(ON_DECODER, 200, remote_prefill(prefiller.answers[ON_PREFILLER]))
    decoder.step()
    announced = prefiller.messenger.of_kind("announce")[0]["transfer"]
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == [announced]


def test_should_leave_ids_to_the_router_that_says_them(engine: EngineMaker) -> None:
    """As ``request_id`` in the body, or as ``transfer_id``."""
    decoder = engine("kv_consumer")
    decoder.add("of-the-router_0-a07be602", 200, remote_prefill())
    decoder.add(ON_DECODER, 200, remote_prefill(transfer_id="of-the-router"))
    decoder.step()
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == ["of-the-router_0", "of-the-router"]


def test_should_decline_by_the_prompt_what_ends_in_the_queue(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", chunk_tokens=0)
    decoder.add(ON_DECODER, 200, remote_prefill())
    decoder.step()
    decoder.abort(ON_DECODER)
    decoder.step()
    (declined,) = decoder.messenger.of_kind("decline")
    assert declined["transfer"] == decoder.messenger.of_kind("expect")[0]["transfer"]
    assert declined["transfer"] == f"prompt-{declined['promptDigest']}"
    assert decoder.at_rest()


@pytest.mark.parametrize("named", [{}, {"transfer_id": "of-the-first-turn"}])
def test_should_compute_what_follows_a_tool_call(engine: EngineMaker, named: dict[str, str]) -> None:
    """No prefiller has the prompt of a later turn, and its parameters are those of the first."""
    decoder = engine("kv_consumer")
    decoder.add("resp_a245b86d30ba8cd6_1-a07be602", 200, remote_prefill(**named), max_tokens=1)
    decoder.steps(3)
    assert decoder.ended["resp_a245b86d30ba8cd6_1-a07be602"].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.messenger.commands == []
    assert decoder.at_rest()


def test_should_not_call_a_client_that_leaves_an_error(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    decoder = engine("kv_consumer")
    decoder.add(ON_DECODER, 200, remote_prefill())
    decoder.step()
    decoder.abort(ON_DECODER)
    decoder.step()
    with caplog.at_level(logging.INFO):
        decoder.messenger.fail(ON_DECODER, "the engine gave the request up")
        decoder.step()
    logged = [record for record in caplog.records if "did not come" in record.message]
    assert [record.levelname for record in logged] == ["INFO"]
    assert decoder.at_rest()


def test_should_know_how_the_release_makes_their_ids(vllm_release: Release) -> None:
    vllm = vllm_release.folder / "vllm"
    responses = vllm / "entrypoints" / "openai" / "responses"
    assert 'default_factory=lambda: f"resp_{random_uuid()}",' in (responses / "protocol.py").read_text()
    serving = (responses / "serving.py").read_text()
    assert 'sub_request_id = f"{request_id}_{sub_request}"' in serving
    assert "X-Request-Id" not in serving
    assert "_base_request_id" not in serving
    assert 'return f"{uuid.uuid4().int & MASK_64_BITS:016x}"' in (vllm / "utils" / "__init__.py").read_text()
