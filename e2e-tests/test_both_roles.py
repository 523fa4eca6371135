"""Two servers that prefill for each other at the same time: each is a prefiller and a decoder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from bed import Messenger, Side, messenger, start_messengers, together, way_of
from prompts import random_prompt
from server_process import greedy_completion, words_of
from traffic import sharing_beginning

ANSWER_TOKENS: Final = 8
LENGTHS: Final = (1, 31, 32, 129, 300, 700)
BEGINNING: Final = 200
ENDINGS: Final = (5, 90, 130, 257)


@dataclass(frozen=True)
class Pair:
    servers: tuple[Messenger, Messenger]
    salt: str

    def alone(self, prompt: str) -> list[str]:
        """What one server says by itself; the salt hides what it has of transfers."""
        body = {**greedy_completion(prompt, ANSWER_TOKENS), "cache_salt": self.salt}
        return words_of(self.servers[0].server.post("/v1/completions", body))

    def way(self, index: int) -> tuple[Messenger, Messenger]:
        """(prefiller, decoder), each of the two in turn."""
        one, other = self.servers
        return (one, other) if index % 2 == 0 else (other, one)

    def arrived(self) -> float:
        return sum(side.metric("kv_messenger_fetches_arrived_total") for side in self.servers)

    def is_at_rest(self) -> None:
        for side in self.servers:
            side.wait_at_rest()


@pytest.fixture(scope="module")
def pair(model: Path, run_folder: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        one, other = (
            messenger(Side(f"both-{core}", "kv_both", core, options={"page_tokens": 32}), model, run_folder)
            for core in range(2)
        )
        start_messengers(stack, [one, other])
        yield Pair((one, other), str(uuid.uuid4()))


def test_each_prefills_for_the_other(pair: Pair) -> None:
    before = pair.arrived()
    for index, length in enumerate(LENGTHS):
        for direction in range(2):
            prompt = random_prompt(length, 800 + direction)
            prefiller, decoder = pair.way(direction)
            answer = way_of(index)(prefiller, decoder, prompt, ANSWER_TOKENS)
            assert words_of(answer) == pair.alone(prompt), f"prompt of {length} tokens to {decoder.server.name}"
    assert pair.arrived() - before == 2 * len(LENGTHS)
    pair.is_at_rest()


def test_prompts_that_share_beginnings_cross_at_once(pair: Pair) -> None:
    """Both servers compute and receive prompts with the same beginnings, which their caches take from either."""
    prompts = [prompt for seed in (810, 811) for prompt in sharing_beginning(seed, BEGINNING, ENDINGS)]
    asked = [(prompt, *pair.way(direction)) for prompt in prompts for direction in range(2)]
    with ThreadPoolExecutor(len(asked)) as clients:
        answers = list(clients.map(lambda ask: together(ask[1], ask[2], ask[0], ANSWER_TOKENS), asked))
    for (prompt, _, decoder), answer in zip(asked, answers, strict=True):
        right = pair.alone(prompt)
        assert words_of(answer) == right, f"prompt of {len(prompt.split())} tokens to {decoder.server.name}"
    pair.is_at_rest()
