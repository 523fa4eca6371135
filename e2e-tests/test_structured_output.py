"""JSON through the proxy that hands first tokens on: the tokens, and the end, of a single vLLM.

Its servers have a tokenizer that can write JSON, so no other test shares them. What words alone can be is asked for in
test_first_token.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from bed import PREFILL_LEG, Bed, decoder, messenger, prefiller, prove, start_messengers
from first_token_bed import first_token_proxy
from json_words import write_json_model
from prompts import random_prompt
from pulls_bed import Tokens, streamed_words
from server_process import Server, greedy_completion, words_of
from servers import CHUNK_TOKENS

pytestmark = pytest.mark.at_length

PROMPT_TOKENS: Final = (1, 127, 128, 129, 300)
ANSWER_TOKENS: Final = 80
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "w5": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "w6": {"enum": ["w7", "w8", "w9"]},
    },
    "required": ["w5", "w6"],
    "additionalProperties": False,
}
ASKED: Final[Mapping[str, dict[str, Any]]] = {
    "schema": {"structured_outputs": {"json": SCHEMA}},
    "streamed": {"structured_outputs": {"json": SCHEMA}, "stream": True},
    "seed": {"structured_outputs": {"json": SCHEMA}, "temperature": 1.0, "seed": 5},
    "any object": {"structured_outputs": {"json_object": True}},
    "response format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    },
}


@pytest.fixture(scope="module")
def pair(model: Path, run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    written = write_json_model(model, tmp_path_factory.mktemp("json-words") / "model")
    source = messenger(prefiller("prefiller-json"), written, run_folder)
    target = messenger(decoder("decoder-json"), written, run_folder)
    with ExitStack() as stack:
        start_messengers(stack, [source, target])
        prove(source, target)
        yield Bed(source, target, written, run_folder)


@pytest.fixture(scope="module")
def proxy(pair: Bed) -> Iterator[Server]:
    yield from first_token_proxy("first-token-proxy-json", pair)


@pytest.mark.parametrize("length", PROMPT_TOKENS)
@pytest.mark.parametrize("case", ASKED)
def test_proxy_answers_as_one_engine_does(pair: Bed, proxy: Server, case: str, length: int) -> None:
    if case == "seed":
        length = min(length, CHUNK_TOKENS)  # with a seed and a prompt of several passes, vLLM 0.32 on a CPU ends itself
    prompt = random_prompt(length, 7700)
    body = {**greedy_completion(prompt, ANSWER_TOKENS), "ignore_eos": False, **ASKED[case]}
    right = pair.prefiller.server.post("/v1/completions", {**body, "stream": False, "cache_salt": str(uuid.uuid4())})
    expected, before = right["choices"][0], Tokens.of(pair.decoder)
    body["cache_salt"] = str(uuid.uuid4())
    if body.get("stream"):
        words = streamed_words(proxy, body)
    else:
        choice = proxy.post("/v1/completions", body)["choices"][0]
        words = choice["text"].split()
        assert choice["finish_reason"] == expected["finish_reason"]
    assert words == expected["text"].split()
    moved = length if length > 1 else 0
    assert Tokens.of(pair.decoder).since(before).moved == moved, "it computes none of the prompt but its last token"
    if expected["finish_reason"] == "stop":
        json.loads("".join(words))


def test_some_answer_is_whole(pair: Bed) -> None:
    """The schema has a longest answer only by chance: at least one of these ends before its limit."""
    prompts = [random_prompt(length, 7700) for length in PROMPT_TOKENS if length <= CHUNK_TOKENS]
    body = {"ignore_eos": False, **ASKED["seed"]}
    answers = [
        pair.prefiller.server.post("/v1/completions", {**greedy_completion(prompt, ANSWER_TOKENS), **body})
        for prompt in prompts
    ]
    assert "stop" in [answer["choices"][0]["finish_reason"] for answer in answers]


def test_grammar_begins_anew_behind_a_handed_on_token(pair: Bed) -> None:
    """Why the proxy sends the whole prompt: an engine takes no token of a prompt for one that its grammar has accepted.

    If this fails, vLLM has learnt it, and first tokens of structured output can be handed on.
    """
    prompt, request = random_prompt(129, 7800), f"anew-{uuid.uuid4()}"
    more = {"ignore_eos": False, **ASKED["schema"]}
    right = words_of(
        pair.prefiller.server.post("/v1/completions", {**greedy_completion(prompt, ANSWER_TOKENS), **more})
    )
    headers = {"X-Request-Id": request}
    asked = {**greedy_completion(prompt, 1), **more, "kv_transfer_params": dict(PREFILL_LEG)}
    first = pair.prefiller.server.post("/v1/completions", asked, headers)
    assert words_of(first) == right[:1] == ["{"]
    handed_on = {**greedy_completion(f"{prompt} {right[0]}", ANSWER_TOKENS - 1), **more}
    rest = pair.decoder.server.post(
        "/v1/completions", {**handed_on, "kv_transfer_params": first["kv_transfer_params"]}, headers
    )
    assert words_of(rest)[0] == "{", "it begins with a second brace"
