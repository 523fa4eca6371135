"""Engines with speculative decoding pull from each other: guesses are right as often as behind an own cache.

Tokens are right whatever a draft guesses. A draft's KV of a token depends on the one that follows, so vLLM computes the
last block of a beginning that it finds in its cache again; of a pulled one too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from bed import Side, messenger, start_messengers
from draft_models import Drafted, draft_model, eagle, eagle3, mtp, ngram
from prompts import cache_home
from pulls_bed import EXTRA, OPTIONS, PAGE_TOKENS, Engines, Tokens, source_of, whole_pages
from server_process import greedy_completion
from test_speculation import ANSWER_TOKENS, GUESSES, WITHOUT_KV, Answer, counted

IN_EACH_RUN: Final = (eagle, ngram)
HISTORIES: Final = (65, 300)


@dataclass(frozen=True)
class Bed:
    engines: Engines
    has_kv: bool

    def answered(self, prompt: str, **more: Any) -> Answer:
        """By the engine that pulls."""
        asker = self.engines.servers[1]
        body = {**greedy_completion(prompt, ANSWER_TOKENS), **more}
        return counted(asker, lambda: asker.server.post("/v1/completions", body))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=kind.__name__, marks=[pytest.mark.at_length] * (kind not in IN_EACH_RUN))
        for kind in (eagle, ngram, eagle3, mtp, draft_model)
    ],
)
def bed(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Bed]:
    drafted: Drafted = request.param(cache_home())
    arguments = ("--speculative-config", drafted.speculative_config(GUESSES))
    sides = [
        Side(f"pulls-{drafted.method}-{at}", "kv_both", at, extra=EXTRA, options={**OPTIONS, "arguments": arguments})
        for at in (0, 1)
    ]
    with ExitStack() as stack:
        servers = [messenger(side, drafted.model, run_folder) for side in sides]
        start_messengers(stack, servers)
        engines = Engines(servers)
        engines.prove(1, 0)
        yield Bed(engines, request.param not in WITHOUT_KV)


@pytest.mark.parametrize("tokens", HISTORIES)
def test_guesses_are_as_good_as_behind_an_own_cache(bed: Bed, tokens: int) -> None:
    engines, salt = bed.engines, str(uuid.uuid4())
    history = engines.prompt(tokens)
    prompt = f"{history} {engines.prompt(40)}"
    bed.answered(history, cache_salt=salt)
    own = bed.answered(prompt, cache_salt=salt)
    engines.ask(0, history)
    before = Tokens.of(engines.servers[1])
    assert bed.answered(prompt, kv_transfer_params=source_of(engines.servers[0])) == own
    moved = Tokens.of(engines.servers[1]).since(before).moved
    assert moved == whole_pages(tokens) - PAGE_TOKENS * bed.has_kv
    engines.are_at_rest()
