"""A proxy for the decoder-first mode: it sends each request to the decoder only, whose messenger fetches the KV.

The proxy names the prefiller in ``kv_transfer_params``. The decoder's messenger sends the prompt to the prefiller's
messenger, which enqueues it in its own engine. Answers are passed through as they arrive, including streamed ones.

    environment run engine -- examples/decoder_first_proxy.py --port 8000 \
        --decoder http://127.0.0.1:8200 --prefiller 127.0.0.1:7100

``--prefiller`` is the control address of the prefiller's messenger (option ``listen_port``), not its HTTP API, and may
be given several times: prefillers are used in rotation.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web

FORWARDED = ("/v1/completions", "/v1/chat/completions")
HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
REQUEST_BYTES_MAX = 64 * 2**20
OF_LONGER_ANSWERS = {"min_tokens", "max_completion_tokens", "stream_options"}


@dataclass
class Proxy:
    decoders: Sequence[str]
    prefillers: Sequence[str]
    turn: itertools.count[int] = field(default_factory=itertools.count)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        turn = next(self.turn)
        body["kv_transfer_params"] = {
            "do_remote_prefill": True,
            "prefiller": self.prefillers[turn % len(self.prefillers)],
        }
        url = self.decoders[turn % len(self.decoders)] + request.path
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_HEADERS}
        async with ClientSession(timeout=ClientTimeout(total=None)) as session:
            try:
                answered = await session.post(url, json=body, headers=headers)
            except ClientError as unreachable:
                raise web.HTTPBadGateway(text=f"no answer from the decoder {url}: {unreachable}") from unreachable
            return await passed_on(request, answered)


async def passed_on(request: web.Request, answered: ClientResponse, ahead: bytes = b"") -> web.StreamResponse:
    """The answer, as it arrives; ``ahead`` comes before one that is no error."""
    async with answered:
        response = web.StreamResponse(status=answered.status)
        response.content_type = answered.content_type
        await response.prepare(request)
        if ahead and answered.status == 200:
            await response.write(ahead)
        async for part in answered.content.iter_any():
            await response.write(part)
        await response.write_eof()
        return response


async def health(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def of_one_token(body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """What a prefiller is asked for. It refuses what is at odds with one token, unstreamed, or answers at length."""
    kept = {name: value for name, value in body.items() if name not in OF_LONGER_ANSWERS}
    return {**kept, "max_tokens": 1, "stream": False, "kv_transfer_params": params}


def application(forward: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    made = web.Application(client_max_size=REQUEST_BYTES_MAX)
    made.router.add_get("/health", health)
    for path in FORWARDED:
        made.router.add_post(path, forward)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--decoder", action="append", required=True, metavar="URL")
    parser.add_argument("--prefiller", action="append", required=True, metavar="HOST:PORT")
    given = parser.parse_args()
    proxy = Proxy([url.rstrip("/") for url in given.decoder], given.prefiller)
    web.run_app(application(proxy.forward), host=given.host, port=given.port, print=None)


if __name__ == "__main__":
    main()
