"""Speculative decoding: by a draft that has KV of its own, which goes with the model's, and by n-grams, without any.

Tokens are right whatever a draft guesses. How many guesses are right shows whether its KV is: they are as many as those
of one engine. That is the prefiller, asked without a transfer and in the same order: vLLM's own guesses behind a
beginning that it finds in its cache may be others than without. A salt keeps it from what it cached for the transfers.

vLLM fills a request's first step up with places for guesses where one token is left to compute, and counts them as
guesses that were wrong. So a decoder makes one draft more than an engine that computes the prompt itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from bed import Messenger, decoder, messenger, prefiller, start_messengers, way_of
from draft_models import Drafted, draft_model, eagle, eagle3, mtp, ngram
from prompts import cache_home, random_prompt
from server_process import greedy_completion, metric_sum, wait_until, words_of
from traffic import sharing_beginning

ANSWER_TOKENS: Final = 10
GUESSES: Final = 3
LENGTHS: Final = (1, 128, 700)
BEGINNING: Final = 300
ENDINGS: Final = (1, 90)
WITH_KV: Final = (draft_model, eagle, eagle3, mtp)
WITHOUT_KV: Final = (ngram,)
AT_LENGTH: Final = (draft_model, eagle3)
"""Their KV moves as that of the others does: with --at-length."""
GENERATED: Final = "vllm:generation_tokens_total"
COUNT_LIMIT_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Answer:
    """What was answered, with how many drafts of how many guesses, and how many were right at each of their places."""

    tokens: list[str]
    drafts: float
    guesses: float
    right: list[float]

    def after_a_transfer(self, prompt: str) -> Answer:
        """What a decoder makes of it. Of a prompt of one token vLLM forgets that it was loaded."""
        padded = len(prompt.split()) > 1
        return replace(self, drafts=self.drafts + padded, guesses=self.guesses + padded * GUESSES)


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger
    salt: str

    def by_transfer(self, way: Any, prompt: str) -> Answer:
        return counted(self.decoder, lambda: way(self.prefiller, self.decoder, prompt, ANSWER_TOKENS))

    def by_one_engine(self, prompt: str) -> Answer:
        body = {**greedy_completion(prompt, ANSWER_TOKENS), "cache_salt": self.salt}
        return counted(self.prefiller, lambda: self.prefiller.server.post("/v1/completions", body))


def counted(engine: Messenger, ask: Any) -> Answer:
    before = engine.server.get("/metrics")
    tokens = words_of(ask())
    after = page_with(engine, metric_sum(before, GENERATED, {}) + len(tokens))

    def gained(name: str, **labels: str) -> float:
        of_all = f"vllm:spec_decode_{name}_total"
        return metric_sum(after, of_all, labels) - metric_sum(before, of_all, labels)

    right = [gained("num_accepted_tokens_per_pos", position=str(place)) for place in range(GUESSES)]
    return Answer(tokens, gained("num_drafts"), gained("num_draft_tokens"), right)


def page_with(engine: Messenger, tokens: float) -> str:
    """The engine's figures, once so many tokens are in them: a step is counted behind the answer, with its guesses."""
    pages = []

    def all_are_counted() -> bool:
        pages.append(engine.server.get("/metrics"))
        return metric_sum(pages[-1], GENERATED, {}) >= tokens

    wait_until(all_are_counted, COUNT_LIMIT_SECONDS, f"{engine.server.name} has counted {tokens:.0f} tokens")
    return pages[-1]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=kind.__name__, marks=[pytest.mark.at_length] * (kind in AT_LENGTH))
        for kind in WITH_KV + WITHOUT_KV
    ],
)
def drafted(request: pytest.FixtureRequest) -> Drafted:
    made: Drafted = request.param(cache_home())
    return made


@pytest.fixture(scope="module")
def pair(drafted: Drafted, run_folder: Path) -> Iterator[Pair]:
    options = {"arguments": ("--speculative-config", drafted.speculative_config(GUESSES))}
    with ExitStack() as stack:
        source = messenger(prefiller(f"prefiller-{drafted.method}", options=options), drafted.model, run_folder)
        target = messenger(decoder(f"decoder-{drafted.method}", options=options), drafted.model, run_folder)
        start_messengers(stack, [source, target])
        yield Pair(source, target, str(uuid.uuid4()))


def prompts() -> list[str]:
    """Some share a beginning of two whole pages, so that both sides find it in their caches."""
    return [
        *(random_prompt(length, 600) for length in LENGTHS),
        *sharing_beginning(601, BEGINNING, ENDINGS),
    ]


def test_as_many_guesses_are_right_as_of_one_engine(drafted: Drafted, pair: Pair) -> None:
    arrived = pair.decoder.metric("kv_messenger_fetches_arrived_total")
    generated = pair.prefiller.server.metric(GENERATED)
    asked, right, made = prompts(), 0.0, 0.0
    answers = [pair.by_transfer(way_of(index), prompt) for index, prompt in enumerate(asked)]
    page_with(pair.prefiller, generated + len(asked))
    for prompt, answer in zip(asked, answers, strict=True):
        alone = pair.by_one_engine(prompt)
        assert answer == alone.after_a_transfer(prompt), f"prompt of {len(prompt.split())} tokens"
        right, made = right + sum(alone.right), made + alone.guesses
    print(f"{right:.0f} of {made:.0f} guesses were right")
    assert 0 < made > right
    assert right > 0 or not drafted.has_kv
    assert pair.decoder.metric("kv_messenger_fetches_arrived_total") - arrived == len(asked)
    pair.prefiller.wait_at_rest()
    pair.decoder.wait_at_rest()
