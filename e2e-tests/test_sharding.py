"""Engines of several tensor-parallel ranks: every rank's share of the KV crosses, whoever carries it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from bed import Bed, Messenger, decoder, decoder_waits, prefiller, serial, together
from conftest import Reference
from server_process import words_of
from workload import ANSWER_TOKENS, SHARDED, Series

WAYS = (serial, decoder_waits, together)
TWO_RANKS = {"tp_size": 2}


@dataclass(frozen=True)
class Pair:
    prefiller: Messenger
    decoder: Messenger


@pytest.fixture(scope="module")
def messenger_per_rank(bed: Bed) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(
            *bed.started(
                stack,
                prefiller("prefiller-tp2-per-rank", messenger_count=2, options=TWO_RANKS),
                decoder("decoder-tp2-per-rank", messenger_count=2, options=TWO_RANKS),
            )
        )


def tokens_are_those_of_a_single_vllm(pair: Pair, series: Series, reference: Reference) -> None:
    """The single vLLM has one rank: its answers do not depend on how anybody shards."""
    before = pair.decoder.tokens_by_transfer()
    for index, prompt in enumerate(series.prompts()):
        answer = WAYS[index % len(WAYS)](pair.prefiller, pair.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
    assert pair.decoder.tokens_by_transfer() - before == series.attributed_tokens()
    pair.prefiller.wait_at_rest()
    pair.decoder.wait_at_rest()


def test_two_ranks_to_two_ranks_with_a_messenger_each(messenger_per_rank: Pair, reference: Reference) -> None:
    arrived_before = messenger_per_rank.decoder.metric("kv_messenger_fetches_arrived_total")
    series = SHARDED["rank 2 to 2"]
    tokens_are_those_of_a_single_vllm(messenger_per_rank, series, reference)
    arrived = messenger_per_rank.decoder.metric("kv_messenger_fetches_arrived_total") - arrived_before
    assert arrived == 2 * len(series.lengths), "each rank's messenger fetches its own share"
