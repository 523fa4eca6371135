"""What is booked of a pull is what a prompt has waited for it, neither for pages nor while the engine has rested."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import EngineMaker
from pulling_engine import HELD_TOKENS, PROMPT_TOKENS, PullingEngine
from release import Status

SECONDS_PER_TOKEN = 0.01
"""Of this engine: whatever is pulled is worth it."""
HINT = {"remote_kv_source": {"remote_host": "127.0.0.1", "remote_port": 14580}}


class World(PullingEngine):
    """An engine whose clock the test moves, and which has no pages for anything new while it is full."""

    def __init__(self, engine: EngineMaker) -> None:
        super().__init__(engine, SECONDS_PER_TOKEN)
        self.pulls._prices._budget.book = self._booked
        self.booked: list[float] = []
        self.is_full = False
        self.admit, self.engine._admit = self.engine._admit, self._admitted

    def _booked(self, *_: Any, waited_seconds: float, **__: Any) -> None:
        self.booked.append(waited_seconds)

    def _admitted(self, request: Any) -> bool:
        """vLLM asks the connector before it looks for pages."""
        if self.is_full and request.status is Status.WAITING:
            self.engine.scheduler.get_num_new_matched_tokens(request, request.cached_tokens)
            return False
        return self.admit(request)

    def ask(self) -> None:
        self.request = f"cmpl-{next(self.count)}-0-11111111"
        self.engine.add(self.request, PROMPT_TOKENS, HINT)
        self.engine.step()

    def passes(self, seconds: float) -> None:
        self.now_seconds += seconds
        self.engine.step()

    def end(self) -> None:
        self.is_full = False
        self.engine.steps(6)
        assert self.engine.at_rest()


def drawn_seconds(drawn: random.Random, most_seconds: float) -> float:
    return drawn.choice([0.0, drawn.uniform(0.0, most_seconds)])


@pytest.mark.parametrize("seed", range(8))
def test_should_book_no_wait_for_pages(engine: EngineMaker, seed: int) -> None:
    """An engine under load is full most of the time; a prompt that waits there is not kept by its pull."""
    world, drawn = World(engine), random.Random(seed)
    for _ in range(5):
        answer_seconds, pages_seconds, fetch_seconds = (drawn_seconds(drawn, most) for most in (0.2, 20.0, 0.5))
        world.booked.clear()
        world.is_full = pages_seconds > 0
        world.ask()
        world.now_seconds += answer_seconds
        world.engine.messenger.offer(HELD_TOKENS)
        world.engine.step()
        for part in range(1, 4):
            world.passes(pages_seconds / 3)
            world.is_full = world.is_full and part < 2
        is_expired = not world.engine.messenger.of_kind("fetch")
        if not is_expired:
            world.now_seconds += fetch_seconds
            world.engine.messenger.arrive(world.request)
        world.end()
        world.engine.messenger.commands.clear()
        waited_seconds = answer_seconds + (0.0 if is_expired else fetch_seconds)
        assert world.booked == [pytest.approx(waited_seconds)], (answer_seconds, pages_seconds, fetch_seconds)


@pytest.mark.parametrize("rested_seconds", [0.0, 0.1, 30.0, 3000.0])
@pytest.mark.parametrize("state", ["asked", "offered", "fetching"])
def test_should_book_nothing_of_a_pull_that_other_weights_have_ended(
    engine: EngineMaker, state: str, rested_seconds: float
) -> None:
    """The engine makes no step while it loads them; later pulls are as much worth as before."""
    world = World(engine)
    world.is_full = state == "offered"
    world.ask()
    if state != "asked":
        world.engine.messenger.offer(HELD_TOKENS)
        world.engine.steps(2)
    world.now_seconds += rested_seconds
    world.engine.own_scheduler.on_weights_called("reload_weights", (), {}, None)
    if state == "fetching":
        world.engine.messenger.arrive(world.request)
    world.end()
    assert not world.booked
    assert not world.pulls._prices._past
