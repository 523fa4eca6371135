"""Engines that may pull from each other, and what a test asks of them."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bed import REST_LIMIT_SECONDS, Messenger, prove
from prompts import random_prompt
from server_process import Server, complete, greedy_completion, wait_until, words_of

ANSWER_TOKENS: Final = 8
PAGE_TOKENS: Final = 32
EXTRA: Final[Mapping[str, Any]] = {"pulls": "always", "pull_tokens_min": 1, "offer_limit_seconds": 600}
"""What an engine holds is always pulled: how fast this machine computes is no part of these tests."""
OPTIONS: Final[Mapping[str, Any]] = {
    "page_tokens": PAGE_TOKENS,
    "load_failure_policy": "recompute",
    "environment": {"VLLM_SERVER_DEV_MODE": "1"},  # for /reset_prefix_cache
}


def whole_pages(tokens: int) -> int:
    """As many tokens as are in whole pages."""
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def source_of(server: Messenger) -> dict[str, Any]:
    """What names the engine in a request that may pull from it."""
    return source_at(server.control_host(), server.control_port)


def source_at(host: str, port: int) -> dict[str, Any]:
    """The same, of the engine whose messenger has this address."""
    return {"remote_kv_source": {"remote_host": host, "remote_port": port}}


@dataclass
class Tokens:
    """Prompt tokens of an engine by where they came from."""

    computed: float
    cached: float
    moved: float

    @staticmethod
    def of(server: Messenger) -> Tokens:
        name = "vllm:prompt_tokens_by_source_total"
        sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
        return Tokens(*(server.server.metric(name, source=source) for source in sources))

    def since(self, before: Tokens) -> Tokens:
        return Tokens(self.computed - before.computed, self.cached - before.cached, self.moved - before.moved)


@dataclass
class Engines:
    """Engines each of which may ask any other."""

    servers: list[Messenger]
    seed: int = 9000
    proven: set[tuple[int, int]] = field(default_factory=set)

    def prompt(self, tokens: int) -> str:
        """One that no engine has seen."""
        self.seed += 1
        return random_prompt(tokens, self.seed)

    def alone(self, prompt: str, tokens: int = ANSWER_TOKENS) -> list[str]:
        """What one engine answers by itself; a new salt hides all that is cached."""
        body = {**greedy_completion(prompt, tokens), "cache_salt": str(uuid.uuid4())}
        return words_of(self.servers[0].server.post("/v1/completions", body))

    def ask(self, at: int, prompt: str, source: int | None = None, **more: Any) -> list[str]:
        """The answer of an engine that may pull from the source."""
        params = None if source is None else source_of(self.servers[source])
        body = {**greedy_completion(prompt, ANSWER_TOKENS), "kv_transfer_params": params, **more}
        return words_of(self.servers[at].server.post("/v1/completions", body))

    def prove(self, asker: int, source: int) -> None:
        """Has the asker compute its first pull from the source too, and compare both, so that later ones are used."""
        if (asker, source) in self.proven:
            return
        history = self.prompt(3 * PAGE_TOKENS)
        self.ask(source, history)
        asking = self.servers[asker]
        compared = "kv_messenger_last_tokens_compared_total"
        before = asking.metric(compared, reason="equal")
        self.ask(asker, f"{history} {self.prompt(5)}", source)

        def is_proven() -> bool:
            words_of(complete(asking.server, random_prompt(1, 9001), 1))  # the page is written after one more step
            return asking.metric(compared, reason="equal") > before

        wait_until(is_proven, REST_LIMIT_SECONDS, f"{asking.server.name} has compared what it pulled")
        self.proven.add((asker, source))

    def prove_all(self, fetching: tuple[int, int] | None = None) -> None:
        """Every engine as the source of every other one, and the one that fetches whole prompts of another."""
        count = range(len(self.servers))
        for asker in count:
            for source in count:
                if asker != source:
                    self.prove(asker, source)
        if fetching is not None:
            prove(*(self.servers[index] for index in fetching))

    def pulled(self, at: int, prompt: str, source: int, **more: Any) -> float:
        """How many tokens the engine pulled for the prompt, whose answer must be right."""
        right = self.alone(prompt)
        before = Tokens.of(self.servers[at])
        assert self.ask(at, prompt, source, **more) == right
        return Tokens.of(self.servers[at]).since(before).moved

    def are_at_rest(self) -> None:
        for server in self.servers:
            server.wait_at_rest()


def streamed_words(front: Server, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> list[str]:
    """The answer of a completion that is streamed."""
    data = json.dumps({**body, "stream": True}).encode()
    asked = urllib.request.Request(
        f"{front.url}/v1/completions", data, {**(headers or {}), "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=REST_LIMIT_SECONDS) as answer:
        lines = [line.removeprefix("data: ") for line in answer.read().decode().splitlines()]
    parts = [json.loads(line) for line in lines if line.startswith("{")]
    return "".join(part["choices"][0]["text"] for part in parts).split()
