"""A request that names several engines to pull from: the one from which its tokens come soonest is asked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import EngineMaker
from pulling_engine import HELD_TOKENS, PROMPT_TOKENS, PullingEngine

PORTS = (14580, 14581, 14582)

SECONDS_PER_TOKEN = 0.05
"""Of this engine, which computes slowly: whatever is pulled is worth it."""


class World(PullingEngine):
    """An engine whose clock the test moves, and the engines that it may pull from."""

    def __init__(self, engine: EngineMaker) -> None:
        super().__init__(engine, SECONDS_PER_TOKEN)

    def ask(self, ports: Sequence[int]) -> int:
        """A prompt of its own names these; returns the port of the engine that is asked, 0 if none is."""
        before = len(self.asks())
        named = [{"remote_host": "127.0.0.1", "remote_port": port} for port in ports]
        self.request = f"cmpl-{next(self.count)}-0-{len(self.asks()):08d}"
        self.engine.add(self.request, PROMPT_TOKENS, {"remote_kv_source": named})
        self.engine.step()
        asked = self.asks()[before:]
        return int(asked[0]["prefillers"][0]["port"]) if asked else 0

    def asks(self) -> list[dict[str, Any]]:
        return list(self.engine.messenger.of_kind("ask"))

    def arrives(self, seconds: float) -> None:
        """What was asked for is held, and takes this time to come."""
        self.engine.messenger.offer(HELD_TOKENS)
        self.engine.steps(2)
        self.now_seconds += seconds
        self.engine.messenger.arrive(self.request)
        self.engine.steps(6)
        assert not self.engine.has_work()

    def answers(self, reason: str) -> None:
        self.engine.messenger.offer(0, reason)
        self.engine.steps(6)
        assert not self.engine.has_work()

    def outcomes(self) -> list[str]:
        ends = [each["outcome"] for each in self.engine.messenger.of_kind("pullEnded")]
        return [*ends, *(each.outcome for each in self.pulls.ended)]


@pytest.fixture
def world(engine: EngineMaker) -> World:
    return World(engine)


@pytest.mark.parametrize("order", list(itertools.permutations(PORTS)))
def test_should_try_each_engine_once_and_ask_the_fastest_then(world: World, order: Sequence[int]) -> None:
    seconds = dict(zip(PORTS, (0.3, 0.1, 0.2), strict=True))
    tried = []
    for _ in PORTS:
        tried.append(world.ask(order))
        world.arrives(seconds[tried[-1]])
    assert tried == list(order)
    for _ in range(3):
        assert world.ask(order) == PORTS[1]
        world.arrives(seconds[PORTS[1]])
    assert world.ask([PORTS[0], PORTS[2]]) == PORTS[2], "of those that are named"
    world.answers("not_held")
    assert world.engine.at_rest()


@pytest.mark.parametrize("reason", ["unreachable", "late"])
def test_should_ask_another_one_after_one_did_not_answer(world: World, reason: str) -> None:
    for port in PORTS[:2]:
        assert world.ask(PORTS[:2]) == port
        world.arrives(0.1 if port == PORTS[0] else 0.2)
    for _ in range(3):
        if world.ask(PORTS[:2]) == PORTS[1]:
            break
        world.now_seconds += 0.25
        world.answers(reason)
    assert int(world.asks()[-1]["prefillers"][0]["port"]) == PORTS[1]
    world.answers("not_held")
    assert world.engine.at_rest()


@pytest.mark.parametrize("seconds_per_token", [SECONDS_PER_TOKEN, SECONDS_PER_TOKEN / 20])
@pytest.mark.parametrize("pause_seconds", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("order", [PORTS[:2], PORTS[1::-1]])
def test_should_ask_the_other_one_while_one_is_always_late(
    world: World, order: Sequence[int], pause_seconds: float, seconds_per_token: float
) -> None:
    fast, late = PORTS[:2]
    world.pulls.rate._seconds_per_token = seconds_per_token
    asked = []
    for _ in range(40):
        asked.append(world.ask(order))
        if asked[-1] == late:
            world.now_seconds += 0.25
            world.answers("late")
        elif asked[-1] == fast:
            world.arrives(0.1)
        else:
            world.engine.steps(6)
        world.now_seconds += pause_seconds
    assert asked.count(0) == 0, "a prompt that does not wait for one engine waits for the other"
    assert asked.count(fast) >= 30
    assert world.engine.at_rest()


def test_should_ask_each_of_several_unknown_engines_where_prompts_come_together(world: World) -> None:
    assert [world.ask(PORTS) for _ in PORTS] == list(PORTS)


def test_should_not_take_an_engine_for_dead_whose_pull_was_given_up_here(world: World) -> None:
    assert world.ask(PORTS[:1]) == PORTS[0]
    world.engine.messenger.offer(HELD_TOKENS)
    world.engine.steps(2)
    world.engine.abort(world.request)
    world.engine.steps(2)
    world.engine.messenger.fail(world.request)
    world.engine.steps(6)
    assert world.outcomes() == ["aborted"]
    assert not world.pulls._prices.transfers.is_dead(world_source(PORTS[0]))


@pytest.mark.parametrize("reason", ["busy", "misfit"])
def test_should_learn_nothing_of_an_engine_from_a_question_that_this_one_declined(world: World, reason: str) -> None:
    assert world.ask(PORTS[:1]) == PORTS[0]
    world.answers(reason)
    assert not world.pulls._prices.transfers.has_answered(world_source(PORTS[0]))


def test_should_ask_none_while_all_are_dead_and_compute(world: World) -> None:
    for port in PORTS[:2]:
        assert world.ask(PORTS[:2]) == port
        world.answers("unreachable")
    assert world.ask(PORTS[:2]) == 0
    world.engine.steps(6)
    assert not world.engine.has_work()
    assert world.outcomes() == ["unreachable"] * 3
    assert world.ask(PORTS[:1]) == PORTS[0], "one that is named alone is asked"
    world.answers("unreachable")


def test_should_leave_an_engine_that_is_lost_within_a_fetch(world: World) -> None:
    for port in PORTS[:2]:
        assert world.ask(PORTS[:2]) == port
        world.arrives(0.1 if port == PORTS[0] else 0.2)
    assert world.ask(PORTS[:2]) == PORTS[0]
    world.engine.messenger.offer(HELD_TOKENS)
    world.engine.steps(2)
    world.engine.messenger.fail(world.request)
    world.engine.steps(6)
    assert world.ask(PORTS[:2]) == PORTS[1]
    world.answers("not_held")
    assert world.pulls._prices.transfers._sources[world_source(PORTS[0])].moving_tokens == 0


def world_source(port: int) -> Any:
    from kv_connector.configuration.messenger_addresses import Address

    return (Address("127.0.0.1", port),)


def test_should_not_ask_itself_where_others_are_named(world: World) -> None:
    world.pulls.own = world_source(PORTS[0])
    assert world.ask(PORTS[:2]) == PORTS[1]
    world.answers("not_held")
    assert world.ask(PORTS[:1]) == 0
    assert world.outcomes()[-1] == "not_worth"
