"""Two prefillers and a decoder of SGLang, any of which may be pulled from."""

from __future__ import annotations

import itertools
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from server_process import LOOPBACK, free_port, words_of
from sglang_bed import COMPLETIONS, KV_MESSENGER, Ground, Kind, Pair, Side, start
from sglang_servers import Role
from sglang_workload import ANSWER_TOKENS

EXTRA: Final = {"pull_tokens_min": 1, "offer_limit_seconds": 600, "pull_pages_share": 0.5}
"""With `pulls` always, what an engine holds is pulled however fast this machine computes."""
CHECKED: Final = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}
"""SGLang compares what its ranks do with their prefix caches, and ends a server whose ranks differ."""
NAMES = itertools.count(1)


@dataclass(frozen=True)
class Trio:
    """Two prefillers that send to one decoder."""

    first: Pair
    second: Pair
    messengers: dict[str, list[int]]
    """The ports of the messengers, by the name of their server."""

    @classmethod
    def started(
        cls,
        ground: Ground,
        stack: ExitStack,
        pulls: str = "always",
        ranks: tuple[int, int, int] = (1, 1, 1),
        **more: Any,
    ) -> Trio:
        """The three servers; they end with `stack`. The writes of the first prefiller can be held back.

        `ranks` are the tensor-parallel ones of the prefillers and of the decoder, `more` KV Messenger's options.
        """
        messengers: dict[str, list[int]] = {}
        counts = iter(ranks)

        def made(role: Role, kind: Kind, bootstrap_port: int, name: str) -> Side:
            count = next(counts)
            first_port = free_port(count)
            messengers[name] = list(range(first_port, first_port + count))
            options = {**EXTRA, "pulls": pulls, "listen_port": first_port, **more}
            environment = CHECKED if count > 1 else {}
            made_so = replace(kind, options=options, tp_size=count, environment=environment)
            return ground.side(role, made_so, bootstrap_port, name=name)

        holdable = replace(KV_MESSENGER, warm_up=False)
        plain = replace(holdable, holdable=False)
        cached = replace(plain, arguments=("--disaggregation-decode-enable-radix-cache",))
        bootstraps = free_port(), free_port()
        kinds = zip((holdable, plain), bootstraps, ("first", "second"), strict=True)
        prefillers = [made("prefill", kind, port, f"pulls-{name}") for kind, port, name in kinds]
        decoder = made("decode", cached, 0, "pulls-decode")
        start(stack, [*(side.server for side in prefillers), decoder.server])
        first, second = (
            Pair(side, decoder, side.server, port, ground.gate)
            for side, port in zip(prefillers, bootstraps, strict=True)
        )
        return cls(first, second, messengers)

    def ask(self, pair: Pair, prompt: str, source: Side | int | None = None) -> tuple[list[str], int]:
        """The answer's words, and how many tokens of the prompt the prefiller had in its cache."""
        body = self.body(pair, prompt, source)
        with ThreadPoolExecutor(1) as other:
            prefill = other.submit(pair.prefiller.server.post, COMPLETIONS, body)
            answer = pair.decoder.server.post(COMPLETIONS, body)
            usage = prefill.result()["usage"]
        return words_of(answer), int((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0)

    def body(
        self, pair: Pair, prompt: str, source: Side | int | None, answer_tokens: int = ANSWER_TOKENS
    ) -> dict[str, Any]:
        """The request, which names the engine to pull from, or the port of its messenger."""
        body = pair.body(prompt, answer_tokens, f"pulls-{next(NAMES)}")
        if source is not None:
            ports = [source] if isinstance(source, int) else self.messengers[source.server.name]
            body["custom_params"] = {"remote_kv_source": named(ports)}
        return body

    @staticmethod
    def sides(pair: Pair) -> list[Side]:
        return [pair.prefiller, pair.decoder]

    def forget(self, *sides: Side) -> None:
        """Empties prefix caches."""
        for side in sides:
            side.wait_at_rest()
            with urllib.request.urlopen(f"{side.server.url}/flush_cache", data=b"{}") as answer:
                assert answer.status == 200

    def wait_at_rest(self) -> None:
        for side in (self.first.prefiller, self.second.prefiller, self.first.decoder):
            side.wait_at_rest()


def named(ports: list[int]) -> dict[str, Any]:
    """As a request names an engine with these messengers, in the order of its ranks."""
    several = ",".join(f"{LOOPBACK}:{port}" for port in ports)
    return {"remote_host": several if len(ports) > 1 else LOOPBACK, "remote_port": ports[0]}
