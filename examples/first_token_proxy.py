"""A proxy that hands the prefiller's first token on: the decoder begins with the second one, by a step of decoding.

Requests go to a prefiller, whose answer is the first token, and then, with that token behind the prompt, to a decoder,
both in rotation. A streamed answer begins as soon as the prefiller has computed the prompt.

    environment run engine -- examples/first_token_proxy.py --port 8000 --prefiller http://127.0.0.1:8100 \
        --decoder http://127.0.0.1:8200

What depends on where an answer begins (seeds, structured output, penalties, stop strings, chats' templates, …) cannot
be split between two requests. So the token is handed on only where a request has nothing but the fields of PLAIN, and
temperature 0, and where it has a text: it may be a part of a character. The decoder of any other request gets the whole
prompt and computes the first token too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from decoder_first_proxy import HOP_HEADERS, application, of_one_token, passed_on

PREFILL_LEG = {"do_remote_decode": True, "do_remote_prefill": False}
PLAIN = frozenset(
    {
        *("model", "prompt", "max_tokens", "temperature", "stream", "ignore_eos", "logprobs", "cache_salt", "user"),
        *("skip_special_tokens", "spaces_between_special_tokens"),
    }
)
"""What two requests with half of the answer each take as one request with all of it does."""


@dataclass
class Proxy:
    prefillers: Sequence[str]
    decoders: Sequence[str]
    count: itertools.count[int] = field(default_factory=itertools.count)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        body, number = await request.json(), next(self.count)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_HEADERS}
        headers["X-Request-Id"] = str(uuid.uuid4())
        hands_on = request.path == "/v1/completions" and is_plain(body)
        prefill = of_one_token(body, PREFILL_LEG)
        async with ClientSession(timeout=ClientTimeout(total=None)) as session:
            url = self.prefillers[number % len(self.prefillers)] + request.path
            try:
                asked = {**prefill, "return_token_ids": True} if hands_on else prefill
                async with session.post(url, json=asked, headers=headers) as prefilled:
                    if prefilled.status != 200:
                        return web.Response(status=prefilled.status, text=await prefilled.text())
                    first = await prefilled.json()
                url = self.decoders[number % len(self.decoders)] + request.path
                decode = {**body, "kv_transfer_params": first["kv_transfer_params"]}
                if not hands_on or not goes_on(first["choices"][0]):
                    return await passed_on(request, await session.post(url, json=decode, headers=headers))
                decode |= behind(first["choices"][0], body["max_tokens"])
                if body.get("stream"):
                    answered = await session.post(url, json=decode, headers=headers)
                    return await passed_on(request, answered, chunk_of(first))
                async with session.post(url, json=decode, headers=headers) as answered:
                    rest = await answered.json()
                    whole = joined(first, rest) if answered.status == 200 else rest
                    return web.json_response(whole, status=answered.status)
            except ClientError as unreachable:
                raise web.HTTPBadGateway(text=f"no answer from {url}: {unreachable}") from unreachable


def is_plain(body: Mapping[str, Any]) -> bool:
    tokens, prompt = body.get("max_tokens"), body.get("prompt")
    is_one = isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(each, int) for each in prompt))
    return is_one and isinstance(tokens, int) and tokens > 1 and body.get("temperature") == 0 and body.keys() <= PLAIN


def goes_on(first: Mapping[str, Any]) -> bool:
    """Whether the answer goes on behind its first token, and has a text from there on.

    A token may be a part of a character; its text is empty then, and another request cannot complete the character.
    """
    return first["finish_reason"] == "length" and bool(first["text"])


def behind(first: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """What the decoder is asked for: the prompt with the first token, and one token less."""
    return {"prompt": [*first["prompt_token_ids"], *first["token_ids"]], "max_tokens": max_tokens - 1}


def joined(first: Mapping[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """One answer of the two."""
    begun, choice = first["choices"][0], rest["choices"][0]
    choice["text"] = begun["text"] + choice["text"]
    if begun["logprobs"] is not None:
        choice["logprobs"]["text_offset"] = [len(begun["text"]) + each for each in choice["logprobs"]["text_offset"]]
        choice["logprobs"] = {key: [*begun["logprobs"][key], *more] for key, more in choice["logprobs"].items()}
    tokens = rest["usage"]["completion_tokens"] + 1
    prompt_tokens = first["usage"]["prompt_tokens"]
    rest["usage"] |= {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": prompt_tokens + tokens,
    }
    rest.pop("kv_transfer_params", None)
    return rest


def chunk_of(first: Mapping[str, Any]) -> bytes:
    """The first token as a stream has it."""
    begun = {key: first["choices"][0][key] for key in ("index", "text", "logprobs")}
    chunk = {key: first[key] for key in ("id", "object", "created", "model")}
    return f"data: {json.dumps({**chunk, 'choices': [{**begun, 'finish_reason': None}]})}\n\n".encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefiller", action="append", required=True, metavar="URL")
    parser.add_argument("--decoder", action="append", required=True, metavar="URL")
    given = parser.parse_args()
    prefillers, decoders = ([url.rstrip("/") for url in urls] for urls in (given.prefiller, given.decoder))
    proxy = Proxy(prefillers, decoders)
    web.run_app(application(proxy.forward), host=given.host, port=given.port, print=None)


if __name__ == "__main__":
    main()
