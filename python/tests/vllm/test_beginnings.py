"""Decoders whose prompt begins with the prefiller's and is longer: the beginning is fetched, the rest is computed."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_decode, remote_prefill
from test_drafts import speculating
from test_proofs_in_steps import Judge

from kv_connector.naming.prompt_digest import prompt_digest

REQUEST = "cmpl-a-0-11111111"
BOUNDARIES = [1, 2, *(blocks * BLOCK_TOKENS + beyond for blocks in (1, 2, 4) for beyond in (-1, 0, 1, 2))]
MORE = (1, 2, BLOCK_TOKENS, 300)


def pages(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


def end(decoder: SimulatedEngine) -> None:
    decoder.steps(8)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("begun", BOUNDARIES)
def test_should_fetch_the_beginning_and_compute_the_rest(engine: EngineMaker, begun: int, more: int) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, begun + more, remote_prefill(remote_prompt_tokens=begun), max_tokens=3)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["promptTokens"], fetch["firstToken"]) == (begun, 0)
    assert fetch["promptDigest"] == prompt_digest(range(begun)), "as the prefiller names its whole prompt"
    assert len(fetch["groups"][0]["pages"]) == pages(begun)
    (expected,) = decoder.messenger.of_kind("expect") or [fetch]
    assert expected["promptDigest"] == fetch["promptDigest"]
    decoder.messenger.arrive(REQUEST)
    decoder.steps(2)
    assert decoder.requests[REQUEST].num_computed_tokens >= begun
    end(decoder)


@pytest.mark.parametrize("cached_blocks", range(6))
@pytest.mark.parametrize("begun", [4 * BLOCK_TOKENS, 4 * BLOCK_TOKENS + 5])
def test_should_fetch_no_more_than_its_own_cache_lacks(engine: EngineMaker, begun: int, cached_blocks: int) -> None:
    decoder = engine("kv_consumer")
    cached = cached_blocks * BLOCK_TOKENS
    params = remote_prefill(remote_prompt_tokens=begun)
    decoder.add(REQUEST, 6 * BLOCK_TOKENS, params, max_tokens=3, cached=cached)
    decoder.step()
    if cached >= begun:
        (decline,) = decoder.messenger.of_kind("decline")
        assert decline["promptDigest"] == prompt_digest(range(begun)), "the prefiller frees its pages"
        assert not decoder.messenger.of_kind("fetch")
    else:
        (fetch,) = decoder.messenger.of_kind("fetch")
        assert (fetch["firstToken"], len(fetch["groups"][0]["pages"])) == (cached, pages(begun) - cached_blocks)
        decoder.messenger.arrive(REQUEST)
    end(decoder)


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("begun", [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 2, 300])
def test_should_compare_the_last_token_of_the_beginning_until_the_pair_is_proven(
    engine: EngineMaker, begun: int, more: int
) -> None:
    judge = Judge()
    decoder = engine("kv_consumer")
    decoder.compare_last_tokens(judge)
    decoder.add(REQUEST, begun + more, remote_prefill(remote_prompt_tokens=begun), max_tokens=3)
    decoder.step()
    blocks = list(decoder.requests[REQUEST].blocks)
    decoder.messenger.arrive(REQUEST)
    decoder.steps(2)
    (proof,) = judge.seen
    assert list(proof.places) == [(blocks[(begun - 1) // BLOCK_TOKENS], (begun - 1) % BLOCK_TOKENS)]
    assert not proof.alone, "the pass writes other tokens behind it"
    end(decoder)
    decoder.add("cmpl-b-0-22222222", begun + more, remote_prefill(remote_prompt_tokens=begun), max_tokens=3)
    decoder.step()
    decoder.messenger.arrive("cmpl-b-0-22222222")
    decoder.step()
    assert decoder.requests["cmpl-b-0-22222222"].num_computed_tokens == begun, "a decode step comes next"
    decoder.steps(8)
    assert len(judge.seen) == 1
    assert decoder.at_rest()


def test_should_compute_what_cannot_prove_its_pair(engine: EngineMaker) -> None:
    """The last token of the beginning is the first of its block, for which vLLM has no block before the load."""
    judge = Judge()
    decoder = engine("kv_consumer")
    decoder.compare_last_tokens(judge)
    params = remote_prefill(remote_prompt_tokens=BLOCK_TOKENS + 1)
    decoder.add(REQUEST, BLOCK_TOKENS + 9, params, max_tokens=3)
    end(decoder)
    assert not decoder.messenger.of_kind("fetch")
    assert len(decoder.messenger.of_kind("decline")) == 1


def test_should_refuse_the_pair_whose_beginning_is_different(engine: EngineMaker) -> None:
    judge = Judge()
    judge.different = {REQUEST}
    decoder = engine("kv_consumer")
    decoder.compare_last_tokens(judge)
    decoder.add(REQUEST, 340, remote_prefill(remote_prompt_tokens=300), max_tokens=3)
    decoder.add("cmpl-b-0-22222222", 340, remote_prefill(remote_prompt_tokens=300), max_tokens=3)
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.steps(6)
    assert {name: status.name for name, status in decoder.ended.items()} == {
        REQUEST: "FINISHED_ERROR",
        "cmpl-b-0-22222222": "FINISHED_ERROR",
    }
    assert len(decoder.messenger.of_kind("fetch")) == 1
    assert decoder.at_rest()


@pytest.mark.parametrize(
    "tokens", [0, -1, True, False, 1.0, "300", [300], {}, 1 << 31, pytest.param(10**5000, id="huge")]
)
def test_should_refuse_what_is_no_number_of_tokens(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, tokens: Any
) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 340, remote_prefill(remote_prompt_tokens=tokens), max_tokens=3)
    decoder.steps(4)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert "kv_transfer_params.remote_prompt_tokens is " in caplog.text
    assert "expected an integer from 1 to 2147483647, as the prefiller's answer gives it" in caplog.text
    assert decoder.at_rest()


@pytest.mark.parametrize("beyond", [1, BLOCK_TOKENS, 4096])
def test_should_refuse_a_prompt_that_is_shorter_and_free_the_prefiller_s_pages(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, beyond: int
) -> None:
    decoder = engine("kv_consumer")
    params = remote_prefill(remote_prompt_tokens=340 + beyond, transfer_id="t")
    decoder.add(REQUEST, 340, params, max_tokens=3)
    decoder.steps(4)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert (
        f"kv_transfer_params.remote_prompt_tokens is {340 + beyond} and this prompt has 340 tokens, expected as many or"
        " more: send the decoder the prefiller's prompt, or one that begins with it" in caplog.text
    )
    (rejected,) = decoder.messenger.of_kind("reject")
    assert rejected["transfer"] == "t"
    assert decoder.at_rest()


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("begun", BOUNDARIES)
def test_should_take_no_beginning_whose_kv_depends_on_what_follows(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, begun: int, more: int
) -> None:
    """As a prefix language model's (HRM-Text): its tokens attend to all of their prompt."""
    decoder = engine("kv_consumer", non_causal=True)
    decoder.add(REQUEST, begun + more, remote_prefill(remote_prompt_tokens=begun, transfer_id="t"), max_tokens=3)
    decoder.steps(4)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert not decoder.messenger.of_kind("fetch")
    assert (
        f"kv_transfer_params.remote_prompt_tokens is {begun} and tokens of this model attend to later ones of their"
        f" prompt, here of {begun + more}, expected as many: send the decoder the prefiller's prompt" in caplog.text
    )
    assert "one that begins with it" not in caplog.text
    (rejected,) = decoder.messenger.of_kind("reject")
    assert rejected["transfer"] == "t"
    assert decoder.at_rest()


@pytest.mark.parametrize("tokens", BOUNDARIES)
@pytest.mark.parametrize("named", [False, True])
def test_should_fetch_a_whole_prompt_whose_tokens_attend_to_later_ones(
    engine: EngineMaker, tokens: int, named: bool
) -> None:
    decoder = engine("kv_consumer", non_causal=True)
    params = remote_prefill(remote_prompt_tokens=tokens if named else None)
    decoder.add(REQUEST, tokens, params, max_tokens=3)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["promptTokens"], len(fetch["groups"][0]["pages"])) == (tokens, pages(tokens))
    decoder.messenger.arrive(REQUEST)
    end(decoder)


@pytest.mark.parametrize("tokens", [None, 340])
def test_should_fetch_all_of_a_prompt_that_is_as_long(engine: EngineMaker, tokens: int | None) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 340, remote_prefill(remote_prompt_tokens=tokens), max_tokens=3)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["promptTokens"], fetch["promptDigest"]) == (340, prompt_digest(range(340)))


def test_should_take_the_answer_of_a_list_for_its_first_prompt_only(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    for item, tokens in enumerate((200, 300)):
        prefiller.add(f"cmpl-a-{item}-1111111{item}", tokens, remote_decode())
    prefiller.steps(4)
    answer = prefiller.answers["cmpl-a-0-11111110"]
    assert answer["remote_prompt_tokens"] == 200
    decoder = engine("kv_consumer")
    for item, tokens in enumerate((200, 300)):
        decoder.add(f"cmpl-a-{item}-2222222{item}", tokens, remote_prefill(answer))
    decoder.step()
    assert [fetch["promptTokens"] for fetch in decoder.messenger.of_kind("fetch")] == [200, 300]


@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("arrives", [False, True])
def test_should_leave_nothing_when_its_client_leaves(engine: EngineMaker, steps: int, arrives: bool) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(remote_prompt_tokens=300), max_tokens=9)
    for step in range(steps):
        decoder.step()
        if step == 0 and arrives:
            decoder.messenger.arrive(REQUEST)
    decoder.abort(REQUEST)
    decoder.step()
    if steps and not arrives:
        decoder.messenger.arrive(REQUEST)
    decoder.steps(4)
    if not steps:
        (decline,) = decoder.messenger.of_kind("decline")
        assert decline["promptDigest"] == prompt_digest(range(300))
    assert decoder.at_rest()


@pytest.mark.parametrize("recompute", [False, True])
def test_should_end_or_compute_what_does_not_come(engine: EngineMaker, recompute: bool) -> None:
    decoder = engine("kv_consumer", recompute=recompute)
    decoder.add(REQUEST, 700, remote_prefill(remote_prompt_tokens=300), max_tokens=2)
    decoder.step()
    decoder.messenger.fail(REQUEST)
    decoder.steps(9)
    assert decoder.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert decoder.at_rest()


def feature(first: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(mm_position=SimpleNamespace(offset=first, length=count))


@pytest.mark.parametrize(
    ("first", "count", "kept"), [(0, 10, 1), (90, 10, 1), (91, 10, None), (99, 2, None), (100, 10, 0), (150, 10, 0)]
)
def test_should_take_images_that_lie_in_the_beginning(
    engine: EngineMaker,  # noqa: ARG001 - loads the release
    first: int,
    count: int,
    kept: int | None,
) -> None:
    beginnings, params = (
        importlib.import_module(f"kv_connector.vllm.{name}") for name in ("beginnings", "transfer_params")
    )
    ask = params.Receive("t", (), "", decoder_first=False, prompt_tokens=100)
    request = SimpleNamespace(
        num_prompt_tokens=200, prompt_token_ids=list(range(200)), mm_features=[feature(first, count)], lora_request="l"
    )
    fits = beginnings.fitting(ask, request, ())
    if kept is None:
        assert "an image or sound of this prompt of 200 lies on both sides of its end" in fits.reason
        return
    assert fits is ask
    begun = beginnings.part_of(request, ask)
    assert (len(begun.mm_features), len(begun.prompt_token_ids), begun.lora_request) == (kept, 100, "l")


@pytest.mark.parametrize("fields", [{"prompt_token_ids": None}, {"prompt_embeds": "some"}])
def test_should_refuse_a_prompt_of_embeddings(
    engine: EngineMaker,  # noqa: ARG001 - loads the release
    fields: dict[str, Any],
) -> None:
    beginnings, params = (
        importlib.import_module(f"kv_connector.vllm.{name}") for name in ("beginnings", "transfer_params")
    )
    ask = params.Receive("t", (), "", decoder_first=False, prompt_tokens=100)
    request = SimpleNamespace(**{"num_prompt_tokens": 200, "prompt_token_ids": list(range(200)), **fields})
    assert "is given by embeddings, expected one by token ids" in beginnings.fitting(ask, request, ()).reason
    request.num_prompt_tokens = 100
    assert beginnings.fitting(ask, request, ()) is ask


@pytest.mark.parametrize("tokens", [BLOCK_TOKENS, BLOCK_TOKENS + 1, BLOCK_TOKENS + 2, 300])
@pytest.mark.parametrize("method", ["eagle", "ngram"])
def test_should_compute_the_last_token_of_a_beginning_again_for_a_draft(
    vllm_release: Release, tokens: int, method: str
) -> None:
    """A draft's KV of it was computed with another token behind it; the first of a block has no block of its own."""
    decoder = SimulatedEngine(vllm_release, "kv_consumer", speculative=speculating(method))
    decoder.add(REQUEST, tokens + 40, remote_prefill(remote_prompt_tokens=tokens), max_tokens=3)
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.step()
    computes_again = method == "eagle" and tokens % BLOCK_TOKENS != 1
    assert decoder.requests[REQUEST].num_computed_tokens == tokens - computes_again
    end(decoder)
