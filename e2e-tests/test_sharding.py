"""Engines of several ranks: every rank's share of the KV crosses, whoever carries it and however the other side shards.

The single vLLM of the reference has one rank: its answers do not depend on how anybody shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import Bed, Messenger, decoder, decoder_waits, prefiller, serial, together
from conftest import Reference
from faults import Clients, Gate, sent_in_part, still_serves
from processes import descendants, kill_alone, mapped_kv_memories, maps_a_jvm
from prompts import random_prompt
from server_process import words_of
from workload import ANSWER_TOKENS, SHARDED, Series

WAYS = (serial, decoder_waits, together)
TWO_RANKS = {"tp_size": 2}
FOR_A_NODE = pytest.mark.parametrize("two_ranks", ["node"], indirect=True)
END_LIMIT_SECONDS = 120.0


@dataclass(frozen=True)
class TwoRanks:
    """A prefiller and a decoder of two tensor-parallel ranks."""

    messenger_per: str
    messenger_count: int
    prefiller: Messenger
    decoder: Messenger
    gate: Gate
    """Holds the prefiller's writes back."""


@pytest.fixture(scope="module", params=["node", "rank"])
def two_ranks(request: pytest.FixtureRequest, bed: Bed) -> Iterator[TwoRanks]:
    per, count = request.param, 1 if request.param == "node" else 2
    gate = Gate(bed.folder / f"held-writes-{per}")
    extra = {"messenger_per": per, "jvm_options": [f"-Dkvmessenger.fault.holdWrites={gate.file}"]}
    with ExitStack() as stack:
        source, target = bed.started(
            stack,
            prefiller(f"prefiller-two-ranks-{per}", messenger_count=count, extra=extra, options=TWO_RANKS),
            decoder(f"decoder-two-ranks-{per}", messenger_count=count, extra=extra, options=TWO_RANKS),
        )
        yield TwoRanks(per, count, source, target, gate)


def tokens_are_those_of_a_single_vllm(
    source: Messenger, target: Messenger, series: Series, reference: Reference
) -> None:
    attributed_before = target.tokens_by_transfer()
    arrived_before = target.metric("kv_messenger_fetches_arrived_total")
    for index, prompt in enumerate(series.prompts()):
        answer = WAYS[index % len(WAYS)](source, target, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
    assert target.tokens_by_transfer() - attributed_before == series.attributed_tokens()
    arrived = target.metric("kv_messenger_fetches_arrived_total") - arrived_before
    assert arrived == len(series.lengths) * len(target.metrics_ports), "each messenger fetches for its own ranks"
    source.wait_at_rest()
    target.wait_at_rest()


def one_process_has_the_pages_of_all_ranks_of_both_sides_mapped(two_ranks: TwoRanks) -> None:
    """So shm copies once, from a rank's page to a rank's page."""
    by_process = {process: mapped_kv_memories(process) for process in descendants(two_ranks.prefiller.server.pid)}
    of_decoder = [mapped_kv_memories(process) for process in descendants(two_ranks.decoder.server.pid)]
    decoder_memories = set[str]().union(*of_decoder)
    assert len(decoder_memories) == 2
    (lead,) = [process for process in by_process if maps_a_jvm(process)]
    assert by_process.pop(lead) >= decoder_memories | set[str]().union(*by_process.values())
    assert len(set[str]().union(*by_process.values())) == 1, "the other rank has its own memory mapped, and no other"


def test_no_more_processes_host_a_jvm_than_there_are_messengers(two_ranks: TwoRanks) -> None:
    for side in (two_ranks.prefiller, two_ranks.decoder):
        hosts = [process for process in descendants(side.server.pid) if maps_a_jvm(process)]
        assert len(hosts) == two_ranks.messenger_count


def test_two_ranks_to_two_ranks(two_ranks: TwoRanks, reference: Reference) -> None:
    series = SHARDED[f"{two_ranks.messenger_per} 2 to 2"]
    tokens_are_those_of_a_single_vllm(two_ranks.prefiller, two_ranks.decoder, series, reference)
    if two_ranks.messenger_per == "node":
        one_process_has_the_pages_of_all_ranks_of_both_sides_mapped(two_ranks)


def test_two_ranks_to_one_rank(two_ranks: TwoRanks, bed: Bed, reference: Reference) -> None:
    series = SHARDED[f"{two_ranks.messenger_per} 2 to 1"]
    tokens_are_those_of_a_single_vllm(two_ranks.prefiller, bed.decoder, series, reference)


def test_one_rank_to_two_ranks(two_ranks: TwoRanks, bed: Bed, reference: Reference) -> None:
    series = SHARDED[f"{two_ranks.messenger_per} 1 to 2"]
    tokens_are_those_of_a_single_vllm(bed.prefiller, two_ranks.decoder, series, reference)


# The last two tests end these engines, one after the other.


@FOR_A_NODE
def test_rank_that_dies_takes_its_engine_down_and_no_other(two_ranks: TwoRanks, bed: Bed, reference: Reference) -> None:
    kill_alone(second_rank(two_ranks.decoder))
    two_ranks.decoder.server.wait_ended(END_LIMIT_SECONDS)
    tokens_are_those_of_a_single_vllm(two_ranks.prefiller, bed.decoder, SHARDED["after a death"], reference)


@FOR_A_NODE
def test_prefiller_s_rank_that_dies_fails_what_waits_for_its_kv(two_ranks: TwoRanks, bed: Bed) -> None:
    """Its lead's messenger still has its memory; it is the engine that ends, and with it the session."""
    source, target = two_ranks.prefiller, bed.decoder
    with ThreadPoolExecutor(2) as pool, two_ranks.gate.closed():
        halfway = sent_in_part(Clients(pool), source, target, random_prompt(260, seed=120), ANSWER_TOKENS)
        kill_alone(second_rank(source))
        assert halfway.ended(END_LIMIT_SECONDS).failed
    source.server.wait_ended(END_LIMIT_SECONDS)
    still_serves(target.server)
    target.wait_at_rest()


def second_rank(engine: Messenger) -> int:
    """The worker's process that hosts no messenger."""
    processes = descendants(engine.server.pid)
    (found,) = [process for process in processes if b"Worker_TP1" in Path(f"/proc/{process}/cmdline").read_bytes()]
    return found
