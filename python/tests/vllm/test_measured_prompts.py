"""How fast an engine computes prompts is measured by prompts, whatever else its steps compute."""

from __future__ import annotations

import importlib
import random
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from release import Status
from simulated_engine import SimulatedEngine

from kv_connector.pulls.prefill_rate import MEASURED_TOKENS_MIN

SECONDS_PER_TOKEN = 0.001
ANSWERS = 90
"""More than as many tokens as make a step of a prompt."""
CHUNK_TOKENS = 512


class World:
    """An engine of which each step takes as long as its prompts, and a time of its own for all answers together."""

    def __init__(self, engine: EngineMaker, answers_seconds: float) -> None:
        self.engine: SimulatedEngine = engine("kv_both", recompute=True, chunk_tokens=CHUNK_TOKENS, block_count=400)
        self.now_seconds = 100.0
        self.answers_seconds = answers_seconds
        self.rate = self.engine.own_scheduler._half._pulls.rate
        self.rate._now_seconds = lambda: self.now_seconds
        self.execute, self.engine._execute = self.engine._execute, self._executed
        self.count = 0

    def _executed(self, output: Any) -> Any:
        results = self.execute(output)
        requests = [self.engine.requests[each] for each in output.num_scheduled_tokens]
        counts = output.num_scheduled_tokens.values()
        prompts = [n for each, n in zip(requests, counts, strict=True) if not each.output_tokens or n > 1]
        has_answers = len(prompts) < len(requests)
        self.now_seconds += SECONDS_PER_TOKEN * sum(prompts) + (self.answers_seconds if has_answers else 0.0)
        return results

    def add(self, prompt_tokens: int, max_tokens: int) -> None:
        self.count += 1
        self.engine.add(f"cmpl-{self.count}-0-{self.count:08d}", prompt_tokens, None, max_tokens=max_tokens)

    def preempt_one(self, drawn: random.Random) -> None:
        answered = [each.request_id for each in self.engine.running if each.output_tokens]
        if answered:
            self.engine.preempt(drawn.choice(answered))


@pytest.mark.parametrize("answers_seconds", [0.0001, 0.02, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_should_measure_prompts_beside_any_number_of_answers(
    engine: EngineMaker, answers_seconds: float, seed: int
) -> None:
    """A step of answers alone changes nothing; one with a prompt as well takes its prompt so long."""
    world, drawn = World(engine, answers_seconds), random.Random(seed)
    for _ in range(ANSWERS):
        world.add(drawn.randint(2, 100), drawn.randint(80, 150))
    for step in range(60):
        if step % 10 == 5:
            world.add(drawn.randint(MEASURED_TOKENS_MIN, 2 * CHUNK_TOKENS), drawn.randint(1, 30))
        if step % 10 == 8:
            world.preempt_one(drawn)
        world.engine.step()
        seconds = world.rate.seconds_of(1)
        assert seconds is not None
        most_seconds = SECONDS_PER_TOKEN + answers_seconds / MEASURED_TOKENS_MIN
        assert SECONDS_PER_TOKEN - 1e-9 <= seconds <= most_seconds + 1e-9
    assert len(world.engine.running) > MEASURED_TOKENS_MIN


def test_should_take_what_a_draft_has_guessed_for_no_prompt(engine: EngineMaker) -> None:
    """Nor a request's last token, which is all that is computed where its prompt has been fetched."""
    engine("kv_both")
    prompt_tokens = importlib.import_module("kv_connector.vllm.scheduled").prompt_tokens
    for seed in range(20):
        drawn = random.Random(seed)
        answers = {f"answer-{each}": drawn.randint(0, 8) for each in range(drawn.randint(0, 300))}
        prompts = {f"prompt-{each}": drawn.randint(2, 4000) for each in range(drawn.randint(0, 3))}
        fetched = {f"fetched-{each}": 1 for each in range(drawn.randint(0, 3))}
        output = SimpleNamespace(
            num_scheduled_tokens={name: 1 + count for name, count in answers.items()} | prompts | fetched,
            scheduled_spec_decode_tokens={name: [-1] * count for name, count in answers.items() if count},
        )
        assert prompt_tokens(output) == sum(prompts.values())


def test_should_measure_nothing_while_only_answers_go_on(engine: EngineMaker) -> None:
    world = World(engine, 0.02)
    for _ in range(ANSWERS):
        world.add(2, 30)
    world.engine.step()
    before = world.rate.seconds_of(1)
    world.engine.steps(20)
    assert len([each for each in world.engine.running if each.status is Status.RUNNING]) == ANSWERS
    assert world.rate.seconds_of(1) == before
