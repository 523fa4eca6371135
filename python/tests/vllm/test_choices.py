"""One HTTP request that is several of the engine's: choices of ``n`` and lists of prompts; and the ids they meet by."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import remote_decode, remote_prefill


def test_should_not_change_parameters_that_requests_share(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    params = remote_prefill()
    for item in ("cmpl-a-0-11111111", "cmpl-a-1-22222222"):
        decoder.add(item, 200, params)
    decoder.step()
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == ["cmpl-a-0", "cmpl-a-0#1"]


@pytest.mark.parametrize("ends", ["arrives", "fails", "aborted"])
def test_should_fetch_once_for_all_choices(engine: EngineMaker, ends: str) -> None:
    decoder = engine("kv_consumer", recompute=True)
    choices = [f"{choice}_chatcmpl-a-11111111" for choice in range(3)]
    for choice in choices:
        decoder.add(choice, 200, remote_prefill(transfer_id="from-the-router"), max_tokens=2)
    decoder.steps(3)
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["request"], fetch["transfer"]) == (choices[0], "from-the-router")
    assert not decoder.running, "the other choices wait for what the first one fetches"

    if ends == "aborted":
        decoder.abort(choices[0])
    if ends == "arrives":
        decoder.messenger.arrive(choices[0])
    else:
        decoder.messenger.fail(choices[0])
    decoder.steps(8)
    assert {decoder.ended[choice].name for choice in choices[1:]} == {"FINISHED_LENGTH_CAPPED"}
    assert len(decoder.messenger.of_kind("fetch")) == 1
    assert decoder.at_rest()


def test_should_compute_a_choice_whose_first_one_is_elsewhere(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add("1_chatcmpl-a-11111111", 200, remote_prefill())
    decoder.steps(2)
    assert decoder.messenger.commands == []
    assert decoder.ended["1_chatcmpl-a-11111111"].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_give_each_prompt_of_a_list_its_own_transfer_when_the_router_names_one(engine: EngineMaker) -> None:
    prefiller, decoder = engine("kv_producer"), engine("kv_consumer")
    for item in range(3):
        prefiller.add(f"cmpl-a-{item}-1111111{item}", 20, remote_decode(transfer_id="from-the-router"))
        decoder.add(f"cmpl-b-{item}-2222222{item}", 20, remote_prefill(transfer_id="from-the-router"))
    prefiller.step()
    decoder.step()
    sent = [prefiller.messenger.chunks_of(f"cmpl-a-{item}-1111111{item}")[0]["transfer"] for item in range(3)]
    assert sent == ["from-the-router", "from-the-router#1", "from-the-router#2"]
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == sent


@pytest.mark.parametrize("item", [0, 2])
def test_should_find_each_prompt_of_a_list_by_one_answer(engine: EngineMaker, item: int) -> None:
    """vLLM answers a list of prompts with the parameters of one of them."""
    prefiller, decoder = engine("kv_producer"), engine("kv_consumer")
    for each in range(3):
        prefiller.add(f"cmpl-a-{each}-1111111{each}", 20, remote_decode())
    prefiller.step()
    answer = prefiller.answers[f"cmpl-a-{item}-1111111{item}"]
    for each in range(3):
        decoder.add(f"cmpl-b-{each}-2222222{each}", 20, remote_prefill(answer))
    decoder.step()
    sent = [prefiller.messenger.chunks_of(f"cmpl-a-{each}-1111111{each}")[0]["transfer"] for each in range(3)]
    assert [fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch")] == sent
    assert len(set(sent)) == 3


@pytest.mark.parametrize("shared", ["x" * 700, "a\u0085b", "\U0001f600" * 300, "\ud800"])
def test_should_meet_under_request_ids_that_no_frame_can_carry(engine: EngineMaker, shared: str) -> None:
    prefiller, decoder = engine("kv_producer"), engine("kv_consumer")
    prefiller.add(f"chatcmpl-{shared}-11111111", 20, remote_decode())
    prefiller.step()
    decoder.add(f"chatcmpl-{shared}-22222222", 20, remote_prefill())
    decoder.add("own-33333333", 20, {"do_remote_prefill": True, "prefiller": "host:1"} | {"transfer_id": "own"})
    decoder.add(f"{shared}-33333333", 20, {"do_remote_prefill": True, "prefiller": "host:1"})
    decoder.step()
    met, own, decoder_first = (fetch["transfer"] for fetch in decoder.messenger.of_kind("fetch"))
    assert met == prefiller.messenger.chunks_of(f"chatcmpl-{shared}-11111111")[0]["transfer"]
    assert own == "own"
    for transfer in (met, decoder_first):
        assert len(transfer.encode("utf-16-le")) <= 1024
        assert transfer.isprintable()


@pytest.fixture(params=["moe", "dense"])
def prefiller_of_ranks(engine: EngineMaker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One data-parallel rank of a prefiller; that of a dense model knows of the others by its engine_id only."""
    config = sys.modules["simulated_engine"].config

    def of_a_rank(*arguments: Any, **more: Any) -> Any:
        made = config(*arguments, **more)
        made.parallel_config.data_parallel_index = 1
        if request.param == "moe":
            made.parallel_config.data_parallel_size = 2
        else:
            made.kv_transfer_config.engine_id += "_dp1"
        return made

    monkeypatch.setattr(sys.modules["simulated_engine"], "config", of_a_rank)
    prefiller = engine("kv_producer")
    monkeypatch.setattr(sys.modules["simulated_engine"], "config", config)
    return prefiller


def answer_of(prefiller: Any, request_id: str) -> dict[str, Any]:
    prefiller.add(request_id, 200, remote_decode())
    prefiller.steps(2)
    for request in prefiller.messenger.owes():
        prefiller.messenger.release(request)
    prefiller.step()
    return dict(prefiller.answers[request_id])


@pytest.mark.parametrize(
    ("prefills", "fetches", "is_served"),
    [
        ("cmpl-a-0-11111111", "cmpl-a-0-22222222", True),
        ("chatcmpl-a-11111111", "1_chatcmpl-a-22222222", True),
        ("0_chatcmpl-a-11111111", "0_chatcmpl-a-22222222", True),
        ("cmpl-a-0-11111111", "cmpl-a-1-22222222", False),
        ("cmpl-a-0-11111111", "0_cmpl-a-3-22222222", False),
        ("1_chatcmpl-a-11111111", "chatcmpl-a-22222222", False),
        ("2_chatcmpl-a-11111111", "0_chatcmpl-a-22222222", False),
    ],
)
def test_should_refuse_at_once_what_another_data_parallel_rank_may_have(
    prefiller_of_ranks: Any,
    engine: EngineMaker,
    prefills: str,
    fetches: str,
    is_served: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """vLLM balances parts of one HTTP request over its ranks; the answer names the messenger of one of them."""
    decoder = engine("kv_consumer")
    decoder.add(fetches, 200, remote_prefill(answer_of(prefiller_of_ranks, prefills)))
    decoder.steps(3)
    if is_served:
        for request in decoder.messenger.owes():
            decoder.messenger.arrive(request)
        decoder.steps(4)
        assert decoder.ended[fetches].name == "FINISHED_LENGTH_CAPPED"
    else:
        assert decoder.messenger.of_kind("fetch") == []
        assert decoder.ended[fetches].name == "FINISHED_ERROR"
        assert "one of several data-parallel ranks of the prefiller" in caplog.text
    assert decoder.at_rest()


def test_should_serve_lists_and_choices_of_a_rank_with_a_server_of_its_own(
    engine: EngineMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sys.modules["simulated_engine"].config
    apart = {"data_parallel_size": 2, "data_parallel_external_lb": True}
    monkeypatch.setattr(sys.modules["simulated_engine"], "config", lambda *a, **m: config(*a, **{**m, **apart}))
    assert "of_data_parallel_rank" not in answer_of(engine("kv_producer"), "1_cmpl-a-0-11111111")
