"""Requests that a decoder's API server rejects, or whose clients leave before its engine has them.

vLLM tells connectors of them by a request that is ended at once: it has the ``kv_transfer_params`` of the other, and an
id and a prompt that are made up.
"""

from __future__ import annotations

from typing import Any

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector.naming.prompt_digest import prompt_digest

MADE_UP = "b526a3a49a5a6183"
MESSENGER = [{"host": "127.0.0.1", "port": 14579, "engineId": ""}]


def rejected(decoder: SimulatedEngine, params: dict[str, Any], request_id: str = MADE_UP) -> list[str]:
    """The transfer ids that the messenger rejects, when vLLM was told to."""
    decoder.add_ended(request_id, params)
    assert decoder.scheduler.has_pending_push_work(), "the prefiller would keep the pages until the next request"
    decoder.step()
    commands = decoder.messenger.commands
    assert {command["do"] for command in commands} <= {"reject"}, "it is no request of this engine"
    assert all(command["prefillers"] == MESSENGER for command in commands)
    assert decoder.at_rest()
    return [command["transfer"] for command in commands]


def test_should_name_the_transfer_of_the_prefiller_s_own_answer(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add("cmpl-a-0-11111111", 20, remote_decode())
    prefiller.step()
    announced = prefiller.messenger.of_kind("announce")[0]["transfer"]
    assert rejected(engine("kv_consumer"), remote_prefill(prefiller.answers["cmpl-a-0-11111111"])) == [announced]


@pytest.mark.parametrize("api", ["cmpl-{}-0-11111111", "chatcmpl-{}-11111111", "generate-tokens-{}-11111111"])
def test_should_name_the_transfer_when_both_legs_were_sent_at_once(engine: EngineMaker, api: str) -> None:
    """The stock router gives the decoder the X-Request-ID and no more."""
    name = "___prefill_addr_h:1___decode_addr_h:2_0123456789abcdef0123456789abcdef"
    prefiller = engine("kv_producer")
    prefiller.add(api.format(name), 20, remote_decode())
    prefiller.step()
    announced = prefiller.messenger.of_kind("announce")[0]["transfer"]
    assert announced in rejected(engine("kv_consumer"), remote_prefill(remote_request_id=name))


@pytest.mark.parametrize("asked", ["2_cmpl-a-3-11111111", "cmpl-a-0-11111111"])
def test_should_know_an_engine_s_own_id_by_its_form(engine: EngineMaker, asked: str) -> None:
    """As our prefillers answer it, also of further choices and of later prompts of a list."""
    assert rejected(engine("kv_consumer"), remote_prefill(remote_request_id=asked), "cmpl-a-0-22222222") == ["cmpl-a-0"]


def test_should_name_both_readings_of_an_id_that_may_end_in_a_suffix(engine: EngineMaker) -> None:
    """Whether the prefiller has appended one is not known here."""
    params = remote_prefill(remote_request_id="chatcmpl-req-00000001")
    assert rejected(engine("kv_consumer"), params, "chatcmpl-b-22222222")[:2] == [
        "chatcmpl-req",
        "chatcmpl-req-00000001",
    ]


def test_should_name_an_id_that_is_too_long_as_the_prefiller_does(engine: EngineMaker) -> None:
    name = "x" * 600
    prefiller = engine("kv_producer")
    prefiller.add(f"cmpl-{name}-0-11111111", 20, remote_decode())
    prefiller.step()
    announced = prefiller.messenger.of_kind("announce")[0]["transfer"]
    assert announced in rejected(engine("kv_consumer"), remote_prefill(remote_request_id=name))


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"},
        {"do_remote_prefill": True, "remote_host": 7},
        {"do_remote_decode": True},
    ],
)
def test_should_say_nothing_where_no_prefiller_waits(engine: EngineMaker, params: dict[str, Any]) -> None:
    decoder = engine("kv_consumer")
    decoder.add_ended(MADE_UP, params)
    decoder.step()
    assert decoder.messenger.commands == []
    assert decoder.at_rest()


def test_should_still_end_a_prefill_that_is_rejected_while_generation_is_paused(engine: EngineMaker) -> None:
    """There vLLM ends the request itself at once, on either side."""
    prefiller = engine("kv_producer")
    prefiller.add_ended("cmpl-a-0-11111111", remote_decode())
    prefiller.step()
    assert [command["do"] for command in prefiller.messenger.commands] == ["announce", "prefillEnded"]
    prefiller.messenger.release("cmpl-a-0-11111111")
    prefiller.step()
    assert prefiller.at_rest()


def test_should_not_mix_it_up_with_a_request_of_the_same_transfer(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", chunk_tokens=0)
    decoder.add("cmpl-a-0-22222222", 700, remote_prefill(remote_request_id="a"))
    decoder.add_ended(MADE_UP, remote_prefill(remote_request_id="a"))
    decoder.step()
    kinds = [command["do"] for command in decoder.messenger.commands]
    assert kinds.count("expect") == 1
    assert "decline" not in kinds
    (expected,) = decoder.messenger.of_kind("expect")
    assert expected["promptDigest"] == prompt_digest(range(700))


def test_should_know_how_the_release_reports_them(vllm_release: Release) -> None:
    vllm = vllm_release.folder / "vllm"
    client = (vllm / "v1" / "engine" / "async_llm.py").read_text()
    assert "async def notify_kv_transfer_request_rejected(" in client
    assert "abort_immediately=True," in client
    assert "if request.abort_immediately:" in (vllm / "v1" / "engine" / "core.py").read_text()
    for api in ("completion", "chat_completion"):
        serving = (vllm / "entrypoints" / "openai" / api / "serving.py").read_text()
        assert "self._with_kv_transfer_rejection_cleanup(" in serving, api
