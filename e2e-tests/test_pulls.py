"""Prompts whose beginning is taken from the engine that a request names: real servers, each of which may hold it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from bed import Messenger, Side, messenger, start_messengers
from prompts import random_prompt
from server_process import complete, greedy_completion, words_of

ANSWER_TOKENS: Final = 8
PAGE_TOKENS: Final = 32
NAMES: Final = ("pulls-a", "pulls-b", "pulls-c")


class Engines:
    """Three engines, each of which may ask any other; ``alone`` is one of them without its cache."""

    def __init__(self, servers: list[Messenger]) -> None:
        self.servers = servers

    def alone(self, prompt: str) -> list[str]:
        """What one engine answers by itself; a new salt hides all that is cached."""
        body = {**greedy_completion(prompt, ANSWER_TOKENS), "cache_salt": str(uuid.uuid4())}
        return words_of(self.servers[0].server.post("/v1/completions", body))

    def ask(self, at: int, prompt: str, source: int | None, **more: Any) -> list[str]:
        hint = None
        if source is not None:
            named = self.servers[source]
            hint = {"remote_kv_source": {"remote_host": named.control_host(), "remote_port": named.control_port}}
        return words_of(complete(self.servers[at].server, prompt, ANSWER_TOKENS, {**(hint or {}), **more} or None))

    def pulled_tokens(self, at: int) -> float:
        return self.servers[at].tokens_by_transfer()

    def are_at_rest(self) -> None:
        for server in self.servers:
            server.wait_at_rest()


@pytest.fixture(scope="module")
def engines(model: Path, run_folder: Path) -> Iterator[Engines]:
    options = {"page_tokens": PAGE_TOKENS, "load_failure_policy": "recompute"}
    extra = {"pulls": "always", "offer_limit_seconds": 600}
    with ExitStack() as stack:
        servers = [
            messenger(Side(name, "kv_both", index % 2, extra=extra, options=options), model, run_folder)
            for index, name in enumerate(NAMES)
        ]
        start_messengers(stack, servers)
        yield Engines(servers)


def test_engine_takes_a_beginning_from_the_one_that_holds_it(engines: Engines) -> None:
    for turn in range(3):  # the first one of a pair is computed too, and compared
        history = random_prompt(400, 900 + turn)
        prompt = f"{history} {random_prompt(60, 950 + turn)}"
        right = engines.alone(prompt)
        engines.ask(0, history, None)
        before = engines.pulled_tokens(1)
        assert engines.ask(1, prompt, 0) == right
        pulled = engines.pulled_tokens(1) - before
        assert pulled == (0 if turn == 0 else 400 // PAGE_TOKENS * PAGE_TOKENS), turn
    engines.are_at_rest()
