"""A proxy that keeps conversations: a prompt names the engine that has answered the one before, to pull its beginning.

Requests go to a prefiller and then to a decoder, both in rotation. A client that sends the header ``X-Session-ID`` goes
on with a conversation: its prefiller is named the decoder of the last answer (``remote_kv_source``), and takes from it
what that one holds of the prompt. Nothing else is kept of a conversation, and nothing goes wrong if a name is stale.

    environment run engine -- examples/conversation_proxy.py --port 8000 --prefiller http://127.0.0.1:8100 \
        --decoder http://127.0.0.1:8200

A decoder runs with the role ``kv_both``, ``engine_api_url`` and ``answers_name_source``, the prefillers with
``kv_both`` and ``kv_load_failure_policy`` ``recompute``. Streamed answers name no engine: for them a decoder is given
with the control address of its messenger (option ``listen_port``), as ``http://127.0.0.1:8200=127.0.0.1:7200``.
"""

from __future__ import annotations

import argparse
import itertools
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from decoder_first_proxy import HOP_HEADERS, application, of_one_token, passed_on

CONVERSATIONS_MAX = 100_000
SOURCE = "remote_kv_source"
PREFILL_LEG = {"do_remote_decode": True, "do_remote_prefill": False}


@dataclass
class Decoder:
    url: str
    source: dict[str, Any]
    """What names it in a prompt, if its answer does not."""

    @classmethod
    def parse(cls, text: str) -> Decoder:
        """``URL``, or ``URL=HOST:PORT``."""
        url, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        if not url or (address and not (host and port.isdecimal())):
            raise argparse.ArgumentTypeError(f"{text!r} is not URL or URL=HOST:PORT, as http://10.0.0.2:8200")
        return cls(url.rstrip("/"), {SOURCE: {"remote_host": host, "remote_port": int(port)}} if address else {})


@dataclass
class Proxy:
    prefillers: Sequence[str]
    decoders: Sequence[Decoder]
    count: itertools.count[int] = field(default_factory=itertools.count)
    answered_by: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict)
    """What names the decoder that answered last, by conversation."""

    async def forward(self, request: web.Request) -> web.StreamResponse:
        body, number = await request.json(), next(self.count)
        conversation = request.headers.get("X-Session-ID", "")
        decoder = self.decoders[number % len(self.decoders)]
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOP_HEADERS}
        headers["X-Request-Id"] = str(uuid.uuid4())
        leg = {**PREFILL_LEG, **self.answered_by.get(conversation, {})}
        prefill = of_one_token(body, leg)
        async with ClientSession(timeout=ClientTimeout(total=None)) as session:
            try:
                url = self.prefillers[number % len(self.prefillers)] + request.path
                async with session.post(url, json=prefill, headers=headers) as prefilled:
                    if prefilled.status != 200:
                        return web.Response(status=prefilled.status, text=await prefilled.text())
                    params = (await prefilled.json())["kv_transfer_params"]
                url = decoder.url + request.path
                answered = await session.post(url, json={**body, "kv_transfer_params": params}, headers=headers)
            except ClientError as unreachable:
                raise web.HTTPBadGateway(text=f"no answer from {url}: {unreachable}") from unreachable
            if answered.content_type != "application/json":  # streamed
                self.keep(conversation, decoder.source)
                return await passed_on(request, answered)
            answer = await answered.json()
            named = answer.pop("kv_transfer_params", None) or {}
            self.keep(conversation, {SOURCE: named[SOURCE]} if SOURCE in named else decoder.source)
            return web.json_response(answer, status=answered.status)

    def keep(self, conversation: str, source: dict[str, Any]) -> None:
        if conversation and source:
            self.answered_by[conversation] = source
            self.answered_by.move_to_end(conversation)
            if len(self.answered_by) > CONVERSATIONS_MAX:
                self.answered_by.popitem(last=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--prefiller", action="append", required=True, metavar="URL")
    parser.add_argument("--decoder", action="append", required=True, type=Decoder.parse, metavar="URL[=HOST:PORT]")
    given = parser.parse_args()
    proxy = Proxy([url.rstrip("/") for url in given.prefiller], given.decoder)
    web.run_app(application(proxy.forward), host=given.host, port=given.port, print=None)


if __name__ == "__main__":
    main()
