"""Pulls between SGLang engines of several tensor-parallel ranks, which change their prefix caches in one round."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

import pytest
from conftest import Reference
from faults import attempt
from prompts import random_prompt
from pulls_trio import Trio
from server_process import free_port, metric_sum, wait_until
from sglang_bed import COMPLETIONS, Ground, Side, give_up
from sglang_servers import PAGE_TOKENS
from sglang_workload import EDITED_AT, mixed_groups, pulled

pytest_plugins = ["sglang_fixtures"]

TURNS: Final = 4
UNFETCHED_SECONDS: Final = 30
"""How long the ranks of a source that no request names hold their parts."""


def pulls(side: Side, reason: str) -> float:
    """How many pulls of an engine have come to this; its first rank counts them."""
    return sum(metric_sum(page, "kv_messenger_pulls_ended_total", {"reason": reason}) for page in side.metrics_pages())


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((2, 2, 1), id="tp2-tp2-tp1"),
        pytest.param((1, 2, 2), id="tp1-tp2-tp2", marks=pytest.mark.at_length),
    ],
)
def trio(request: pytest.FixtureRequest, ground: Ground, by_sglang: Reference) -> Iterator[Trio]:
    """The ranks of both prefillers and of the decoder."""
    assert by_sglang
    with ExitStack() as stack:
        yield Trio.started(ground, stack, ranks=request.param, offer_limit_seconds=UNFETCHED_SECONDS)


def test_beginning_comes_from_the_other_prefiller(trio: Trio, by_sglang: Reference) -> None:
    begun, whole, *_ = pulled()
    assert trio.ask(trio.first, begun) == (by_sglang.to(begun), 0)
    held = len(begun.split()) // PAGE_TOKENS * PAGE_TOKENS
    assert trio.ask(trio.second, whole, trio.first.prefiller) == (by_sglang.to(whole), held)
    side = trio.second.prefiller
    assert pulls(side, "arrived") == 1
    assert side.metric_by_rank("kv_messenger_last_tokens_compared_total") == [1, 1], "the first one is compared by all"
    trio.wait_at_rest()


@pytest.mark.at_length
def test_edited_prompt_is_pulled_up_to_its_edit(trio: Trio, by_sglang: Reference) -> None:
    _, whole, *edited = pulled()
    trio.ask(trio.second, whole)
    for at, prompt in zip(EDITED_AT, edited, strict=True):
        trio.forget(trio.first.prefiller)
        held = at // PAGE_TOKENS * PAGE_TOKENS
        assert trio.ask(trio.first, prompt, trio.second.prefiller) == (by_sglang.to(prompt), held)
    trio.wait_at_rest()


def test_beginning_comes_from_the_decoder(trio: Trio, by_sglang: Reference) -> None:
    _, whole, *_ = pulled()
    trio.ask(trio.first, whole)
    trio.forget(trio.second.prefiller)
    held = (len(whole.split()) - 1) // PAGE_TOKENS * PAGE_TOKENS
    assert trio.ask(trio.second, whole, trio.first.decoder) == (by_sglang.to(whole), held)
    trio.wait_at_rest()


@pytest.mark.parametrize("how", ["the first rank alone", "in the wrong order"])
def test_source_that_is_named_wrongly_is_not_pulled_from(trio: Trio, by_sglang: Reference, how: str) -> None:
    """The second prefiller has two ranks."""
    _, whole, *_ = pulled()
    trio.ask(trio.second, whole)
    trio.forget(trio.first.prefiller)
    name = trio.second.prefiller.server.name
    ports = trio.messengers[name]
    before = pulls(trio.first.prefiller, "arrived")
    trio.messengers[name] = ports[:1] if how == "the first rank alone" else ports[::-1]
    try:
        assert trio.ask(trio.first, whole, trio.second.prefiller) == (by_sglang.to(whole), 0)
    finally:
        trio.messengers[name] = ports
    assert pulls(trio.first.prefiller, "arrived") == before
    trio.wait_at_rest()


@pytest.mark.at_length
def test_conversation_goes_on_at_any_prefiller(trio: Trio) -> None:
    draw = random.Random(6)
    history, turns, sources = random_prompt(100, 51), [], [trio.first.decoder]
    for number in range(TURNS):
        pair = draw.choice((trio.first, trio.second))
        answer, _ = trio.ask(pair, history, draw.choice(sources))
        turns.append((history, answer))
        sources = [pair.prefiller, trio.first.decoder]
        history = " ".join([history, *answer, random_prompt(40, 52 + number)])
    for prompt, answer in turns:
        trio.forget(trio.first.prefiller)
        assert trio.ask(trio.first, prompt) == (answer, 0), "the same without a pull"
    trio.wait_at_rest()


@pytest.mark.at_length
def test_prompts_that_share_beginnings_at_once_from_any_engine(trio: Trio, by_sglang: Reference) -> None:
    draw = random.Random(7)
    pairs, wrong = (trio.first, trio.second), []
    sources = [trio.first.prefiller, trio.second.prefiller, trio.first.decoder, free_port(), None]
    before = sum(pulls(pair.prefiller, "arrived") for pair in pairs)
    for number, group in enumerate(mixed_groups()):
        if number % 4 == 3:
            trio.forget(draw.choice(pairs).prefiller)
        legs = [(prompt, draw.choice(pairs), draw.choice(sources)) for prompt in group]
        with ThreadPoolExecutor(len(legs)) as clients:
            answers = clients.map(lambda leg: trio.ask(leg[1], leg[0], leg[2])[0], legs)
            wrong += [leg[0] for leg, words in zip(legs, answers, strict=True) if words != by_sglang.to(leg[0])]
    assert not wrong
    assert sum(pulls(pair.prefiller, "arrived") for pair in pairs) > before
    trio.wait_at_rest()


@pytest.mark.parametrize("aborted", [pytest.param(False, marks=pytest.mark.at_length), True])
def test_pull_that_stands_still_stops_no_other_request(trio: Trio, by_sglang: Reference, aborted: bool) -> None:
    begun, whole, *edited = pulled()
    trio.ask(trio.first, begun)
    trio.forget(trio.second.prefiller)
    body = trio.body(trio.second, whole, trio.first.prefiller)
    with ThreadPoolExecutor(2) as legs, trio.first.gate.closed():
        asked = [legs.submit(attempt, side.server.post, COMPLETIONS, body) for side in trio.sides(trio.second)]
        wait_until(lambda: trio.first.prefiller.metric("kv_messenger_writes_in_flight") > 0, 60, "the pull has begun")
        for prompt in edited:
            assert trio.ask(trio.second, prompt)[0] == by_sglang.to(prompt)
        if aborted:
            give_up(body["rid"], trio.sides(trio.second))
    outcomes = [leg.result() for leg in asked]
    assert outcomes[1].failed if aborted else outcomes[1].words == by_sglang.to(whole)
    trio.wait_at_rest()


def test_source_killed_in_mid_pull_costs_nothing_but_time(trio: Trio, by_sglang: Reference) -> None:
    begun, whole, *_ = pulled()
    trio.ask(trio.first, begun)
    trio.forget(trio.second.prefiller)
    body = trio.body(trio.second, whole, trio.first.prefiller)
    with ThreadPoolExecutor(2) as legs, trio.first.gate.closed():
        asked = [legs.submit(attempt, side.server.post, COMPLETIONS, body) for side in trio.sides(trio.second)]
        wait_until(lambda: trio.first.prefiller.metric("kv_messenger_writes_in_flight") > 0, 60, "the pull has begun")
        trio.first.prefiller.server.kill()
        assert asked[1].result().words == by_sglang.to(whole)
    assert trio.ask(trio.second, begun, trio.first.prefiller)[0] == by_sglang.to(begun)
    for side in (trio.second.prefiller, trio.second.decoder):
        side.wait_at_rest()
