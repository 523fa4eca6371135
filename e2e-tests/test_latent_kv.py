"""Latent KV (MLA), which is the same on every tensor-parallel rank: the bytes of both sides are compared.

Tokens would not do: vLLM's CPU kernels for such models answer otherwise when a step computes one token alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bed import Messenger, Side, decoder, messenger, prefiller, serial, start_messengers
from kv_memory import LatentPages, latent_pages
from make_model import TinyLatentModel, cached_model
from prompts import cache_home, random_prompt
from server_process import words_of

MODEL = TinyLatentModel()
TOKEN_BYTES = (MODEL.latent_size + 64) * 4
PAGE_TOKENS = 16
PROMPT_TOKENS = 700


@dataclass(frozen=True)
class Way:
    """How the prefiller is sharded; the decoder has one rank."""

    name: str
    ranks: int
    messenger_count: int

    def side(self, options: Mapping[str, Any]) -> Side:
        per = "rank" if self.messenger_count > 1 else "node"
        return prefiller(
            f"prefiller-latent-{self.name}",
            messenger_count=self.messenger_count,
            extra={"messenger_per": per},
            options={**options, "tp_size": self.ranks},
        )


WAYS = (Way("one-rank", 1, 1), Way("two-ranks-one-messenger", 2, 1), Way("two-ranks-two-messengers", 2, 2))


@dataclass(frozen=True)
class LatentEngines:
    prefillers: Mapping[Way, Messenger]
    decoder: Messenger


@pytest.fixture(scope="module")
def engines(run_folder: Path) -> Iterator[LatentEngines]:
    model = cached_model(cache_home(), MODEL)
    options = {
        "page_tokens": PAGE_TOKENS,
        "prefix_caching": False,
        "arguments": ("--attention-config.backend", "CPU_MLA", "--max-num-batched-tokens", "2048"),
    }
    sources = {way: messenger(way.side(options), model, run_folder) for way in WAYS}
    target = messenger(decoder("decoder-latent", options=options), model, run_folder)
    with ExitStack() as stack:
        start_messengers(stack, [*sources.values(), target])
        yield LatentEngines(sources, target)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_latent_bytes_are_the_same_on_both_sides(engines: LatentEngines, way: Way) -> None:
    source, target = engines.prefillers[way], engines.decoder
    (received,) = latent_pages(target.server, TOKEN_BYTES)
    before = {page: received.beginning(page, PAGE_TOKENS) for page in received.written()}
    words_of(serial(source, target, random_prompt(PROMPT_TOKENS, 200 + WAYS.index(way)), 1))
    pages = [page for page in received.written() if received.beginning(page, PAGE_TOKENS) != before.get(page)]
    assert len(pages) == math.ceil(PROMPT_TOKENS / PAGE_TOKENS)
    sent_by_rank = latent_pages(source.server, TOKEN_BYTES)
    assert len(sent_by_rank) == way.ranks
    for sent in sent_by_rank:
        assert_same_bytes(sent, received, pages)
    source.wait_at_rest()
    target.wait_at_rest()


def assert_same_bytes(sent: LatentPages, received: LatentPages, pages: list[int]) -> None:
    """All but the last prompt token, which the decoder computes again."""
    in_last_page = (PROMPT_TOKENS - 1) % PAGE_TOKENS
    whole = {sent.beginning(page, PAGE_TOKENS) for page in sent.written()}
    begun = {sent.beginning(page, in_last_page) for page in sent.written()}
    different = [page for page in pages if received.beginning(page, PAGE_TOKENS) not in whole]
    assert len(different) <= 1, f"pages {different} are on no page of the prefiller, expected the last one at most"
    assert all(received.beginning(page, in_last_page) in begun for page in different), "the last page differs"
    assert len({received.beginning(page, in_last_page) for page in pages}) == len(pages), "pages came twice"
