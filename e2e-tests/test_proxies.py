"""What the example proxies ask engines for, and make of their answers. The engines here answer by a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import conversation_proxy
import first_token_proxy
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from decoder_first_proxy import application
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PROMPT = "what next? "
ANSWERS = ["plain", "日本", "é", "😀 and more", " 😀", "…", "\n\n- a"]
LONG = {"min_tokens": 4, "max_completion_tokens": 20, "stream_options": {"include_usage": True}}
"""What no request for one token, unstreamed, may have: it is refused, or answered at length."""


def bytes_as_tokens() -> Any:
    """A tokenizer of which each token is one byte, as large vocabularies have them for what is rare."""
    vocabulary = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


TOKENIZER = bytes_as_tokens()


def text_of(prompt: Sequence[int], answer: Sequence[int]) -> str:
    """As vLLM's API server makes it."""
    from vllm import SamplingParams
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    asked = SimpleNamespace(
        request_id="r", prompt_token_ids=list(prompt), prompt_embeds=None, sampling_params=SamplingParams()
    )
    detokenizer = IncrementalDetokenizer.from_new_request(TOKENIZER, asked)
    detokenizer.update(list(answer), False)
    return str(detokenizer.get_next_output_text(True, False))


class ScriptedEngine:
    """Continues ``PROMPT`` with the tokens of one answer."""

    def __init__(self, answer: str) -> None:
        self.answer: list[int] = TOKENIZER.encode(answer)
        self.asked: list[dict[str, Any]] = []

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        prompt = body.get("prompt", PROMPT)
        prompt = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
        tokens = self.answer[len(prompt) - len(TOKENIZER.encode(PROMPT)) :][: body["max_tokens"]]
        choice = {"index": 0, "text": text_of(prompt, tokens), "logprobs": None, "finish_reason": "length"}
        if body.get("stream"):
            return web.Response(text=f"data: {json.dumps({'choices': [choice]})}\n\n", content_type="text/event-stream")
        named = {"id": "i", "object": "o", "created": 0, "model": "m"}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        whole = {**choice, "prompt_token_ids": prompt, "token_ids": tokens}
        return web.json_response({**named, "choices": [whole], "usage": usage, "kv_transfer_params": {"a": 1}})


def answered(proxy: str, engine: ScriptedEngine, body: dict[str, Any], path: str = "/v1/completions") -> str:
    """The text that a client gets."""

    async def run() -> str:
        async with TestServer(application(engine.complete)) as server:
            url = str(server.make_url("")).rstrip("/")
            made: Any = first_token_proxy.Proxy([url], [url])
            if proxy == "conversation":
                made = conversation_proxy.Proxy([url], [conversation_proxy.Decoder(url, {})])
            async with TestClient(TestServer(application(made.forward))) as client:
                response = await client.post(path, json=body)
                assert response.status == 200
                text = await response.text()
        parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
        return "".join(choice["text"] for part in parts for choice in json.loads(part)["choices"])

    return asyncio.run(run())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("answer", ANSWERS)
def test_first_token_proxy_cuts_no_character(answer: str, streamed: bool) -> None:
    """A token may be a part of a character, of which one engine alone makes the text."""
    engine = ScriptedEngine(answer)
    body = {"prompt": PROMPT, "max_tokens": len(engine.answer), "temperature": 0, "stream": streamed}
    assert answered("first token", engine, body) == answer


@pytest.mark.parametrize("proxy", ["first token", "conversation"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_prefillers_are_asked_for_one_token(proxy: str, path: str) -> None:
    engine = ScriptedEngine("plain")
    body = {"prompt": PROMPT, "max_tokens": 5, **LONG}
    assert answered(proxy, engine, body, path) == "plain"
    prefill, decode = engine.asked
    assert (prefill["max_tokens"], prefill["stream"]) == (1, False)
    assert not LONG.keys() & prefill.keys()
    assert decode == {**body, "kv_transfer_params": {"a": 1}}
