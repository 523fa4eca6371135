"""What a decoder tells its prefillers of requests in its queue, and which of these it lets in."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import MODEL_TOKENS_MAX, SimulatedEngine, remote_prefill

from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.vllm.prompts import digest_of

REQUEST = "chatcmpl-0123456789abcdef-89abcdef"
TRANSFER = "chatcmpl-0123456789abcdef"


def test_should_expect_what_it_will_fetch_later(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", chunk_tokens=0)
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.steps(3)
    prefillers = [{"host": "127.0.0.1", "port": 14579, "engineId": ""}]
    named = {"transfer": TRANSFER, "promptDigest": prompt_digest(range(700)), "prefillers": prefillers}
    assert decoder.messenger.commands == [{"do": "expect", **named}]

    decoder.chunk_tokens = 256
    decoder.step()
    assert [command["do"] for command in decoder.messenger.commands] == ["expect", "fetch"]
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_decline_what_it_expected_when_the_request_ends_in_the_queue(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", chunk_tokens=0)
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.abort(REQUEST)
    assert decoder.scheduler.has_pending_push_work(), "the prefiller would keep the pages until the next request"
    decoder.step()
    assert [command["do"] for command in decoder.messenger.commands] == ["expect", "decline"]
    expected, declined = decoder.messenger.commands
    assert declined | {"do": "expect"} == expected, "what was expected is declined: of that prompt under that id"
    assert decoder.at_rest()


def test_should_make_the_digest_of_a_prompt_once(engine: EngineMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a long prompt takes milliseconds, in the scheduler's thread."""
    made: list[str] = []

    def counted(request: Any, *more: Any) -> str:
        if request.prompt_token_ids:  # without any it names weights, in microseconds
            made.append(request.request_id)
        return digest_of(request, *more)

    monkeypatch.setattr("kv_connector.vllm.connector.digest_of", counted)
    decoder = engine("kv_consumer", chunk_tokens=0)
    aborted = "chatcmpl-aborted-00000000"
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.add(aborted, 700, remote_prefill())
    decoder.step()
    decoder.abort(aborted)
    decoder.chunk_tokens = 256
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.messenger.of_kind("decline")
    assert decoder.messenger.of_kind("fetch")
    assert made == [REQUEST, aborted]
    assert decoder.at_rest()


LONGEST_BLOCKS = MODEL_TOKENS_MAX // 128


def fetched(decoder: SimulatedEngine) -> list[str]:
    return [command["request"] for command in decoder.messenger.of_kind("fetch")]


def test_should_fetch_of_what_is_not_computed_only_what_leaves_room_for_the_longest_prompt(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", block_count=LONGEST_BLOCKS + 10)  # one of them is the engine's own
    names = [f"request-{index}-0000000{index}" for index in range(4)]
    for name in names:
        decoder.add(name, 500, remote_prefill())
    decoder.steps(3)
    assert fetched(decoder) == names[:2]
    assert [command["do"] for command in decoder.messenger.commands].count("expect") == 2

    decoder.messenger.prefilled("request-3")
    decoder.steps(2)
    assert fetched(decoder) == [*names[:2], names[3]], "what is computed leaves its prefiller's pool"

    decoder.messenger.arrive(names[0])
    decoder.steps(2)
    assert fetched(decoder) == [*names[:2], names[3], names[2]]
    for name in names[1:]:
        decoder.messenger.arrive(name)
    decoder.steps(6)
    assert decoder.at_rest()


def test_should_let_in_what_it_cannot_hear_of(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", block_count=LONGEST_BLOCKS + 1, extra={"on_messenger_lost": "stay"})
    decoder.messenger.refuse.add("expect")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.steps(3)
    assert fetched(decoder) == [REQUEST]

    decoder.add("second-00000000", 700, remote_prefill())
    decoder.messenger.refuse.clear()
    decoder.steps(3)
    assert fetched(decoder) == [REQUEST], "it waits for a word"
    decoder.messenger.refuse.add("poll")
    decoder.steps(6)
    assert decoder.ended["second-00000000"].name == "FINISHED_ERROR", "the messenger is dead"


def test_should_forget_a_request_that_ends_while_it_waits_for_the_word(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", block_count=LONGEST_BLOCKS + 1)
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.steps(2)
    decoder.abort(REQUEST)
    decoder.steps(2)
    assert decoder.at_rest()


def test_should_fetch_alone_what_came_to_the_decoder_only(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", block_count=LONGEST_BLOCKS + 1)
    names = ["first-00000000", "second-00000000"]
    for name in names:
        decoder.add(name, 700, {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"})
    decoder.steps(3)
    assert fetched(decoder) == names[:1]
    decoder.messenger.arrive(names[0])
    decoder.steps(2)
    assert fetched(decoder) == names


def test_should_compute_itself_what_came_to_it_only_and_would_fill_its_pool(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", block_count=LONGEST_BLOCKS + 1)
    decoder.add(REQUEST, 20, remote_prefill())
    decoder.steps(2)
    decoder.add("only-00000000", 700, {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"})
    decoder.steps(8)
    assert "only-00000000" not in fetched(decoder)
    assert decoder.ended["only-00000000"].name == "FINISHED_LENGTH_CAPPED"
    decoder.abort(REQUEST)
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_not_expect_what_only_its_own_prefiller_will_know(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", chunk_tokens=0)
    decoder.add(REQUEST, 700, {"do_remote_prefill": True, "prefiller": "host:1"})
    decoder.step()
    assert decoder.messenger.commands == []
