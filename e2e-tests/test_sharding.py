"""Engines of several ranks: each rank's share of the KV crosses, whichever rank carries it.

The single vLLM of the reference has one rank: its answers do not depend on sharding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import Bed, Messenger, Side, decoder, prefiller, way_of
from conftest import Reference
from faults import Clients, Gate, sent_in_part, still_serves
from processes import descendants, kill_alone, mapped_kv_memories, maps_a_jvm, read
from prompts import random_prompt
from server_process import words_of
from workload import ANSWER_TOKENS, SHARDED, Series

TWO_RANKS = {"tp_size": 2}
MESSENGER_COUNT = {"node": 1, "rank": 2}
WITH_A_PREFILLER_FOR_A_NODE = pytest.mark.parametrize("two_rank_prefiller", ["node"], indirect=True)
WITH_A_PREFILLER_FOR_EACH_RANK = pytest.mark.parametrize("two_rank_prefiller", ["rank"], indirect=True)
WITH_EACH_DECODER = pytest.mark.parametrize("decoder_per", ["node", "rank"])
END_LIMIT_SECONDS = 600.0


@dataclass(frozen=True)
class TwoRanks:
    """A prefiller of two tensor-parallel ranks."""

    messenger_per: str
    engine: Messenger
    gate: Gate
    """Holds its writes back."""


def two_ranks(side: Callable[..., Side], per: str, *jvm_options: str) -> Side:
    return side(
        f"{side.__name__}-two-ranks-{per}",
        messenger_count=MESSENGER_COUNT[per],
        extra={"messenger_per": per, "jvm_options": list(jvm_options)},
        options=TWO_RANKS,
    )


@pytest.fixture(scope="module")
def two_rank_decoders(bed: Bed) -> Iterator[dict[str, Messenger]]:
    """By what they have a messenger for. Both live as long as these tests: each prefiller meets both."""
    with ExitStack() as stack:
        made = bed.started(stack, *(two_ranks(decoder, per) for per in MESSENGER_COUNT))
        yield dict(zip(MESSENGER_COUNT, made, strict=True))


@pytest.fixture(scope="module", params=MESSENGER_COUNT)
def two_rank_prefiller(request: pytest.FixtureRequest, bed: Bed) -> Iterator[TwoRanks]:
    """pytest runs all tests of the first one before those of the second."""
    per = request.param
    gate = Gate(bed.folder / f"held-writes-{per}")
    with ExitStack() as stack:
        (engine,) = bed.started(stack, two_ranks(prefiller, per, *gate.jvm_options))
        yield TwoRanks(per, engine, gate)


def tokens_are_those_of_a_single_vllm(
    source: Messenger, target: Messenger, series: Series, reference: Reference
) -> None:
    attributed_before = target.tokens_by_transfer()
    arrived_before = target.metric("kv_messenger_fetches_arrived_total")
    for index, prompt in enumerate(series.prompts()):
        answer = way_of(index)(source, target, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
    assert target.tokens_by_transfer() - attributed_before == series.attributed_tokens()
    arrived = target.metric("kv_messenger_fetches_arrived_total") - arrived_before
    assert arrived == len(series.lengths) * len(target.metrics_ports), "each messenger fetches for its own ranks"
    source.wait_at_rest()
    target.wait_at_rest()


def one_process_has_the_pages_of_all_ranks_of_both_sides_mapped(source: Messenger, target: Messenger) -> None:
    """So shm copies once, from a rank's page to a rank's page."""
    by_process = {process: mapped_kv_memories(process) for process in descendants(source.server.pid)}
    of_decoder = [mapped_kv_memories(process) for process in descendants(target.server.pid)]
    decoder_memories = set[str]().union(*of_decoder)
    assert len(decoder_memories) == 2
    (lead,) = [process for process in by_process if maps_a_jvm(process)]
    assert by_process.pop(lead) >= decoder_memories | set[str]().union(*by_process.values())
    assert len(set[str]().union(*by_process.values())) == 1, "the other rank has its own memory mapped, and no other"


def jvm_count(engine: Messenger) -> int:
    return sum(maps_a_jvm(process) for process in descendants(engine.server.pid))


@WITH_EACH_DECODER
def test_no_more_processes_host_a_jvm_than_a_decoder_has_messengers(
    two_rank_decoders: dict[str, Messenger], decoder_per: str
) -> None:
    assert jvm_count(two_rank_decoders[decoder_per]) == MESSENGER_COUNT[decoder_per]


@WITH_EACH_DECODER
def test_one_rank_to_two_ranks(
    two_rank_decoders: dict[str, Messenger], decoder_per: str, bed: Bed, reference: Reference
) -> None:
    series = SHARDED[f"one rank to {decoder_per}"]
    tokens_are_those_of_a_single_vllm(bed.prefiller, two_rank_decoders[decoder_per], series, reference)


@WITH_EACH_DECODER
def test_two_ranks_to_two_ranks(
    two_rank_prefiller: TwoRanks, two_rank_decoders: dict[str, Messenger], decoder_per: str, reference: Reference
) -> None:
    """Also where one side has a messenger for the node and the other has one for each rank."""
    source, target = two_rank_prefiller.engine, two_rank_decoders[decoder_per]
    series = SHARDED[f"{two_rank_prefiller.messenger_per} to {decoder_per}"]
    tokens_are_those_of_a_single_vllm(source, target, series, reference)
    if (two_rank_prefiller.messenger_per, decoder_per) == ("node", "node"):
        one_process_has_the_pages_of_all_ranks_of_both_sides_mapped(source, target)


def test_two_ranks_to_one_rank(two_rank_prefiller: TwoRanks, bed: Bed, reference: Reference) -> None:
    series = SHARDED[f"{two_rank_prefiller.messenger_per} to one rank"]
    tokens_are_those_of_a_single_vllm(two_rank_prefiller.engine, bed.decoder, series, reference)


def test_no_more_processes_host_a_jvm_than_a_prefiller_has_messengers(two_rank_prefiller: TwoRanks) -> None:
    assert jvm_count(two_rank_prefiller.engine) == MESSENGER_COUNT[two_rank_prefiller.messenger_per]


# The last test with each prefiller ends an engine that no later test needs.


@WITH_A_PREFILLER_FOR_A_NODE
def test_prefiller_s_rank_that_dies_fails_what_waits_for_its_kv(two_rank_prefiller: TwoRanks, bed: Bed) -> None:
    """Its lead's messenger still has its memory; it is the engine that ends, and with it the session."""
    source, target = two_rank_prefiller.engine, bed.decoder
    with ThreadPoolExecutor(2) as pool, two_rank_prefiller.gate.closed():
        halfway = sent_in_part(Clients(pool), source, target, random_prompt(260, seed=120), ANSWER_TOKENS)
        kill_alone(second_rank(source))
        assert halfway.ended(END_LIMIT_SECONDS).failed
    source.server.wait_ended(END_LIMIT_SECONDS)
    still_serves(target.server)
    target.wait_at_rest()


@WITH_A_PREFILLER_FOR_EACH_RANK
def test_rank_that_dies_takes_its_engine_down_and_no_other(
    two_rank_prefiller: TwoRanks, two_rank_decoders: dict[str, Messenger], bed: Bed, reference: Reference
) -> None:
    dying = two_rank_decoders["node"]
    kill_alone(second_rank(dying))
    dying.server.wait_ended(END_LIMIT_SECONDS)
    tokens_are_those_of_a_single_vllm(two_rank_prefiller.engine, bed.decoder, SHARDED["after a death"], reference)


def second_rank(engine: Messenger) -> int:
    """The worker's process that hosts no messenger."""
    processes = descendants(engine.server.pid)
    (found,) = [process for process in processes if "Worker_TP1" in read(Path(f"/proc/{process}/cmdline"))]
    return found
