"""Offers and the first pull of a pair, through both halves of the connector and an engine's steps."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_decode

from kv_connector import Released

DIGEST = "a" * 32


@pytest.fixture
def source(engine: EngineMaker) -> SimulatedEngine:
    made = engine("kv_both")
    for name in ("running-0-11111111", "other-0-22222222"):
        made.add(name, 100, remote_decode())
    return made


def offer(source: SimulatedEngine, blocks: list[int]) -> str:
    """As if a carrier had come and its blocks were found."""
    half = source.own_scheduler._half
    metadata = importlib.import_module("kv_connector.vllm.metadata")
    number = str(half._numbers.nameless())
    source.pool.touch(blocks)
    half._offers._pinned[number] = list(blocks)
    tokens = len(blocks) * BLOCK_TOKENS
    half._pending.offers.append(
        metadata.Offer(number, "pull-1", DIGEST, tokens, [metadata.PlacedBlocks(0, blocks)], "")
    )
    return number


def held(source: SimulatedEngine, blocks: list[int]) -> list[int]:
    return [source.pool._references[block] for block in blocks]


def begun(source: SimulatedEngine) -> list[int]:
    """Blocks of a request that is still in the engine, as those of a prefix cache."""
    source.step()
    return list(source.requests["running-0-11111111"].blocks)


def finish(source: SimulatedEngine) -> None:
    source.steps(2)
    for name in list(source.messenger.owes()):
        source.messenger.release(name)
    source.steps(2)
    assert source.at_rest()


def test_should_offer_before_the_pass_of_the_step(source: SimulatedEngine) -> None:
    """What it offers was full before; ``SimulatedMessenger`` refuses an offer inside a step."""
    blocks = begun(source)
    source.add("third-0-33333333", 100, remote_decode())
    number = offer(source, blocks)
    source.step()
    kinds = [command["do"] for command in source.messenger.commands]
    assert kinds.index("offer") < len(kinds) - 1 - kinds[::-1].index("step")
    (command,) = source.messenger.of_kind("offer")
    assert (command["request"], command["heldTokens"]) == (number, len(blocks) * BLOCK_TOKENS)
    assert command["groups"] == [{"firstPage": 0, "pages": blocks}]
    finish(source)


def test_should_hold_offered_blocks_until_they_are_released(source: SimulatedEngine) -> None:
    blocks = begun(source)
    number = offer(source, blocks)
    source.steps(2)
    for name in list(source.messenger.owes()):
        if name != number:
            source.messenger.release(name)
    source.step()
    assert held(source, blocks) == [1] * len(blocks)
    assert source.scheduler.has_pending_push_work()
    source.messenger.release(number)
    source.step()
    assert held(source, blocks) == [0] * len(blocks)
    finish(source)


def test_should_give_back_offered_blocks_before_the_cache_is_emptied(source: SimulatedEngine) -> None:
    blocks = begun(source)
    taken, waiting = offer(source, blocks), ""
    source.step()
    waiting = offer(source, blocks)

    def call_workers(call: Any) -> list[list[str]]:
        assert call.__name__ == "withdraw_offers"
        return [source.own_worker.withdraw_offers()]

    before = held(source, blocks)
    source.own_scheduler.before_cache_reset(call_workers)
    assert held(source, blocks) == [each - 2 for each in before]
    assert [command["request"] for command in source.messenger.of_kind("withdraw")] == [taken]
    source.step()
    last = source.messenger.of_kind("offer")[-1]
    assert (last["request"], last["heldTokens"], last["reason"]) == (waiting, 0, "not_held")
    finish(source)


def test_should_release_what_the_messenger_does_not_take(source: SimulatedEngine) -> None:
    blocks = begun(source)
    before = held(source, blocks)
    source.messenger.refuse.add("offer")
    offer(source, blocks)
    source.step()
    assert held(source, blocks) == before
    finish(source)


def test_should_keep_blocks_that_may_have_been_offered(source: SimulatedEngine) -> None:
    """The command has failed: whether the messenger has it is unknown until it has released it."""
    blocks = begun(source)
    number = offer(source, blocks)
    worker = source.worker._worker
    now_seconds, submit = 1000.0, worker._client.submit
    worker._now_seconds = lambda: now_seconds

    def taken_and_failed(command: Any) -> bool:
        submit(command)
        raise RuntimeError("after it was taken")

    worker._client.submit = taken_and_failed
    source.step()
    worker._client.submit = submit
    assert number in worker._pulls._offers
    source.messenger.release(number)
    source.steps(2)
    assert number not in worker._pulls._offers
    finish(source)


def test_should_ask_again_whether_an_offer_is_released(source: SimulatedEngine) -> None:
    blocks = begun(source)
    number = offer(source, blocks)
    worker = source.worker._worker
    now_seconds = 1000.0
    worker._now_seconds = lambda: now_seconds
    source.step()
    source.messenger.drops.append(Released)
    source.messenger.release(number)
    source.steps(2)
    assert number in worker._pulls._offers
    now_seconds += worker._limits.unheard_seconds
    source.steps(2)
    assert number not in worker._pulls._offers
    finish(source)
