"""KV that comes by libfabric is right, and a prefiller that goes fails what waits for it.

Prefix caching is off, so that the prefiller's own answers are those of one engine, and no third has to start.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fabric
import pytest
from bed import Messenger, decoder, messenger, prefiller, start_messengers, together, way_of
from faults import Clients, Gate, granted_without_prefill, sent_in_part, still_serves
from idle_cost import assert_sleeps, spent
from kv_connector.cli.timelines import prefills
from prompts import random_prompt
from server_process import complete, words_of
from traffic import sharing_beginning

LENGTHS: Final = (1, 2, 127, 128, 129, 700, 1500)
ANSWER_TOKENS: Final = 8
BEGINNING: Final = 140
ENDINGS: Final = (1, 5, 90, 130, 300, 500)
FAILS_LIMIT_SECONDS: Final = 600.0
IDLE_SECONDS: Final = 3.0


@dataclass
class Pair:
    prefiller: Messenger
    decoder: Messenger
    gate: Gate

    def alone(self, prompt: str) -> list[str]:
        """What one engine answers by itself."""
        return words_of(complete(self.prefiller.server, prompt, ANSWER_TOKENS))

    def is_at_rest(self) -> None:
        self.prefiller.wait_at_rest()
        self.decoder.wait_at_rest()


@pytest.fixture(scope="module")
def pair(model: Path, run_folder: Path) -> Iterator[Pair]:
    if fabric.folder() is None:
        pytest.skip("no libfabric: examples/setup/find-libfabric says why")
    gate = Gate(run_folder / "held-writes-of-libfabric")
    options = {"prefix_caching": False}
    held = {**fabric.options(), "jvm_options": gate.jvm_options}
    with ExitStack() as stack:
        source = messenger(prefiller("prefiller-libfabric", extra=held, options=options), model, run_folder)
        target = messenger(decoder("decoder-libfabric", extra=fabric.options(), options=options), model, run_folder)
        start_messengers(stack, [source, target])
        stack.callback(gate.open)
        yield Pair(source, target, gate)


def test_tokens_are_those_of_one_engine(pair: Pair) -> None:
    for index, length in enumerate(LENGTHS):
        prompt = random_prompt(length, 510)
        answer = way_of(index)(pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == pair.alone(prompt), f"prompt of {length} tokens"
    pair.is_at_rest()
    used = {prefill.transport for prefill in prefills(pair.prefiller.server.log()).values()}
    assert used == {"libfabric"}


def test_prompts_at_once_that_share_a_beginning_get_right_tokens(pair: Pair) -> None:
    prompts = sharing_beginning(511, BEGINNING, ENDINGS)
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(lambda p: together(pair.prefiller, pair.decoder, p, ANSWER_TOKENS), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert words_of(answer) == pair.alone(prompt), f"prompt of {len(prompt.split())} tokens"
    pair.is_at_rest()


def test_idle_messenger_sleeps(pair: Pair) -> None:
    """Nothing wakes it when a write comes; it looks often only while it waits for one."""
    by_role = spent({"prefiller": pair.prefiller, "decoder": pair.decoder}, IDLE_SECONDS)
    for role, by_thread in by_role.items():
        assert_sleeps(role, by_thread)


def test_killed_prefiller_fails_what_waits_for_it(pair: Pair) -> None:
    """kill -9 with one request's KV sent in part and another's pages granted; it is the last test of this pair."""
    sent, granted = (random_prompt(260, seed) for seed in (512, 513))
    with ThreadPoolExecutor(4) as pool, pair.gate.closed():
        clients = Clients(pool)
        pending = [
            sent_in_part(clients, pair.prefiller, pair.decoder, sent, ANSWER_TOKENS),
            granted_without_prefill(clients, pair.prefiller, pair.decoder, granted, ANSWER_TOKENS),
        ]
        pair.prefiller.server.kill()
        assert all(request.ended(FAILS_LIMIT_SECONDS).failed for request in pending)
    still_serves(pair.decoder.server)
    pair.decoder.wait_at_rest()
