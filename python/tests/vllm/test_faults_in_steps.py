"""A fault in one part of a step harms requests, and no page: fences and quarantines go with the step that needs them.

The faults are generated: each call that the scheduler's half makes in a step, and with its reports, raises once.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

import kv_connector

HALF = Path(kv_connector.__file__).parent / "vllm" / "scheduler_half.py"
TOKENS = 700
NAME, OTHER = "cmpl-a-0-11111111", "cmpl-b-0-22222222"
KEEPERS = ("self._numbers.name", "self._quarantine.take_in", "self._shadows.may_be_written")
"""What keeps blocks out of use: where it fails itself, nothing else can."""
UNBREAKABLE = ("self._logger", "self._prefills.", "self._loading_first.")
"""A dict's methods, a set's, and those that say what has failed."""


class SimulatedFaultError(Exception):
    pass


def calls_in(name: str) -> list[str]:
    """What a method of the scheduler's half calls of its own object and of that object's parts."""
    tree = ast.parse(HALF.read_text(encoding="utf-8"))
    (method,) = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == name)
    called = {ast.unparse(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)}
    found = sorted(each for each in called if each.startswith("self.") and not each.startswith(UNBREAKABLE))
    assert found
    return found


def step_with_fault(engine: SimulatedEngine, call: str) -> None:
    """A step in which the first one of these calls raises, if there is one."""
    *parts, name = call.split(".")[1:]
    owner = functools.reduce(getattr, parts, engine.own_scheduler._half)

    def fails(*_: Any, **__: Any) -> None:
        del vars(owner)[name]
        raise SimulatedFaultError(call)

    setattr(owner, name, fails)
    engine.step()
    vars(owner).pop(name, None)


def after_limits(engine: SimulatedEngine) -> None:
    """All steps that the requests need, with the releases that their messenger owes."""
    for _ in range(3):
        engine.steps(6)
        for request, owed in list(engine.messenger.owes().items()):
            if owed == "prefill":
                engine.messenger.release(request)
    engine.steps(3)


@pytest.mark.parametrize("call", calls_in("_build"))
@pytest.mark.parametrize("steps_before", [1, 2])
def test_should_fence_what_is_preempted_whatever_fails_in_the_step(
    engine: EngineMaker, call: str, steps_before: int
) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(NAME, TOKENS, remote_decode())
    prefiller.steps(steps_before)
    assert prefiller.messenger.chunks_of(NAME)
    prefiller.preempt(NAME)
    step_with_fault(prefiller, call)
    assert prefiller.messenger.fenced[-1] == [NAME], "its blocks may be read while they have a new owner"
    prefiller.add(OTHER, TOKENS, remote_decode())
    after_limits(prefiller)
    assert {NAME, OTHER} <= prefiller.ended.keys()
    assert prefiller.at_rest()


@pytest.mark.parametrize("call", [each for each in calls_in("_take") if each not in KEEPERS])
def test_should_keep_blocks_that_may_be_written_to_whatever_fails_with_the_report(
    engine: EngineMaker, call: str
) -> None:
    decoder = engine("kv_consumer")
    decoder.add(NAME, TOKENS, remote_prefill())
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    pages = {page for group in fetch["groups"] for page in group["pages"]}
    decoder.messenger.quarantine(NAME)
    step_with_fault(decoder, call)
    decoder.steps(2)
    assert decoder.ended[NAME].name == "FINISHED_ERROR"
    assert not pages & set(decoder.pool.free), "a block is free while it may be written to"
    decoder.messenger.fail(NAME)
    decoder.steps(3)
    assert not decoder.has_work()
    assert len(decoder.free_blocks) == decoder.block_count


@pytest.mark.parametrize("call", calls_in("_take"))
def test_should_end_what_is_sent_whatever_fails_with_the_report(engine: EngineMaker, call: str) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(NAME, TOKENS, remote_decode())
    prefiller.steps(4)
    prefiller.messenger.release(NAME)
    step_with_fault(prefiller, call)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_offer_nothing_of_earlier_weights_where_a_prompt_cannot_be_renamed(engine: EngineMaker) -> None:
    both = engine("kv_both")
    half = both.own_scheduler._half
    both.add(NAME, TOKENS, None)
    both.steps(3)
    assert half.cached.are_current
    half.weights_loaded = None  # which cannot be called
    both.own_scheduler.on_weights_called("reload_weights", (), {}, None)
    assert not half.cached.are_current
