"""A decoder's prompt goes on behind the prefiller's: with its first token, which proxies may hand on, or with more."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from bed import Bed, prove, send_decode, send_prefill
from first_token_bed import first_token_proxy
from prompts import random_prompt
from pulls_bed import Tokens, streamed_words
from server_process import Server, greedy_completion, words_of

ANSWER_TOKENS = 12
BLOCK_TOKENS = 128
LENGTHS = [1, 2, BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, BLOCK_TOKENS + 2, 300, 700]


@pytest.fixture(scope="module")
def pair(bed: Bed) -> Bed:
    """Once proven, the decoder computes no token that the prefiller has computed."""
    prove(bed.prefiller, bed.decoder)
    return bed


def alone(pair: Bed, prompt: str, tokens: int = ANSWER_TOKENS, **more: Any) -> dict[str, Any]:
    """What one engine answers by itself; a new salt hides all that is cached."""
    body = {**greedy_completion(prompt, tokens), "cache_salt": str(uuid.uuid4()), **more}
    return pair.prefiller.server.post("/v1/completions", body)


def prefilled(pair: Bed, prompt: str) -> tuple[str, dict[str, Any], str]:
    """The first token, what the decoder's leg gets of the answer, and the request's id."""
    request = f"begins-{uuid.uuid4()}"
    answer = send_prefill(pair.prefiller, prompt, request)
    return words_of(answer)[0], answer["kv_transfer_params"], request


@pytest.mark.parametrize("length", LENGTHS)
def test_first_token_is_handed_on(pair: Bed, length: int) -> None:
    prompt = random_prompt(length, 7100)
    right = words_of(alone(pair, prompt))
    first, leg, request = prefilled(pair, prompt)
    assert leg["remote_prompt_tokens"] == length
    before = Tokens.of(pair.decoder)
    answer = send_decode(pair.decoder, f"{prompt} {first}", ANSWER_TOKENS - 1, leg, request)
    assert [first, *words_of(answer)] == right
    came = Tokens.of(pair.decoder).since(before)
    assert (came.moved, came.computed) == (length, 1), "its first step is one of decoding"


@pytest.mark.parametrize("more", [1, 5, BLOCK_TOKENS, 400])
def test_what_follows_the_prefiller_s_prompt_is_computed(pair: Bed, more: int) -> None:
    """The next message of a chat, or text that is speculated upon."""
    prompt = random_prompt(300 + more, 7200)
    whole = f"{prompt} {random_prompt(more, 7300)}"
    right = words_of(alone(pair, whole))
    _, leg, request = prefilled(pair, prompt)
    assert words_of(send_decode(pair.decoder, whole, ANSWER_TOKENS, leg, request)) == right


@pytest.mark.parametrize("edited_at", [0, BLOCK_TOKENS - 1, BLOCK_TOKENS, 299])
def test_another_beginning_is_refused(pair: Bed, edited_at: int) -> None:
    words = random_prompt(300, 7400 + edited_at).split()
    first, leg, request = prefilled(pair, " ".join(words))
    words[edited_at] = "w5" if words[edited_at] != "w5" else "w6"
    answer = send_decode(pair.decoder, " ".join([*words, first]), ANSWER_TOKENS, leg, request)
    assert "choices" not in answer, "no wrong tokens"
    for engine in (pair.prefiller, pair.decoder):
        engine.wait_at_rest()


def test_a_prompt_that_is_shorter_is_refused_in_a_sentence(pair: Bed) -> None:
    prompt = random_prompt(200, 7500)
    _, leg, request = prefilled(pair, prompt)
    seen = len(pair.decoder.server.log())
    assert "choices" not in send_decode(pair.decoder, random_prompt(150, 7501), ANSWER_TOKENS, leg, request)
    sentence = "kv_transfer_params.remote_prompt_tokens is 200 and this prompt has 150 tokens, expected as many or more"
    assert sentence in pair.decoder.server.log()[seen:]
    for engine in (pair.prefiller, pair.decoder):
        engine.wait_at_rest()


ASKED: Mapping[str, dict[str, Any]] = {
    "greedy": {},
    "logprobs": {"logprobs": 2},
    "seed": {"temperature": 0.9, "seed": 11},
    "stop": {"stop": ["w1", "w2", "w3"]},
    "logit bias": {"logit_bias": {"7": 3.0}},
    "several answers": {"n": 2, "temperature": 0.7, "seed": 3},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    "one token": {"max_tokens": 1},
    "streamed": {"stream": True},
    "structured output: choice": {"structured_outputs": {"choice": ["w5w6w7", "w5w6w8w9", "w13"]}, "ignore_eos": False},
    "structured output: a token": {"structured_outputs": {"choice": ["w21", "w22"]}, "ignore_eos": False},
    "structured output: regex": {"structured_outputs": {"regex": "(w5|w6)(w[0-9]+){3}w8"}, "ignore_eos": False},
    "structured output: grammar": {"structured_outputs": {"grammar": 'root ::= "w5" ("w7" | "w8")+'}},
}


@pytest.fixture(scope="module")
def proxy(pair: Bed) -> Iterator[Server]:
    yield from first_token_proxy("first-token-proxy", pair)


@pytest.mark.parametrize("case", ASKED)
def test_proxy_answers_as_one_engine_does(pair: Bed, proxy: Server, case: str) -> None:
    prompt = random_prompt(150, 7600)
    body = {**greedy_completion(prompt, ANSWER_TOKENS), **ASKED[case]}
    right = pair.prefiller.server.post("/v1/completions", {**body, "stream": False, "cache_salt": str(uuid.uuid4())})
    if body.get("stream"):
        assert streamed_words(proxy, body) == words_of(right)
        return
    answer = proxy.post("/v1/completions", body)
    assert len(answer["choices"]) == len(right["choices"])
    choice, expected = answer["choices"][0], right["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected["text"], expected["finish_reason"])
    assert answer["usage"]["completion_tokens"] == right["usage"]["completion_tokens"]
    assert answer["usage"]["prompt_tokens"] == right["usage"]["prompt_tokens"]
    if expected["logprobs"] is not None:
        assert choice["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-3)
