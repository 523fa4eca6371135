"""Blocks that are held for sending, and that come back: what users would lose is room in the pool, or their engine."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode

REQUEST = "cmpl-a-0-11111111"


def windowed(engine: EngineMaker) -> SimulatedEngine:
    prefiller = engine("kv_producer", chunk_tokens=1024)
    half = prefiller.own_scheduler._half
    half._groups = half._chunks._groups = [dataclasses.replace(half._groups[0], window_tokens=64)]
    return prefiller


def references(engine: SimulatedEngine) -> list[int]:
    """How often each block of the request is held."""
    return [engine.pool._references[block] for block in engine.requests[REQUEST].blocks]


def test_should_keep_a_window_that_is_being_sent_from_those_that_come_next(engine: EngineMaker) -> None:
    """The engine's window moves on as it decodes, and its blocks go to other requests."""
    prefiller = windowed(engine)
    prefiller.add(REQUEST, 256, remote_decode(), max_tokens=20)
    prefiller.step()
    assert references(prefiller)[:2] == [1, 2], "the last window is in the second block"


def test_should_give_back_a_window_that_is_sent(engine: EngineMaker) -> None:
    prefiller = windowed(engine)
    prefiller.add(REQUEST, 256, remote_decode())
    prefiller.steps(2)
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert len(prefiller.free_blocks) == prefiller.block_count
    assert prefiller.at_rest()


def test_should_give_back_the_window_of_a_preempted_request(engine: EngineMaker) -> None:
    """It is computed again in other blocks; those of before would be held for good."""
    prefiller = windowed(engine)
    prefiller.add(REQUEST, 256, remote_decode(), max_tokens=3)
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.steps(4)
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert len(prefiller.free_blocks) == prefiller.block_count
    assert prefiller.at_rest()


def test_should_step_on_for_blocks_that_are_held_though_no_request_is_left(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 100, remote_decode())
    prefiller.steps(3)
    prefiller.messenger.events.clear()
    assert prefiller.scheduler.has_pending_push_work(), "the report that they are sent would come with no step"


def lost(engine: EngineMaker) -> SimulatedEngine:
    """A prefiller whose messenger was told one chunk, and then not the next."""
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode(), max_tokens=50)
    prefiller.step()
    prefiller.messenger.refuse.add("step")
    prefiller.step()
    prefiller.messenger.refuse.clear()
    assert prefiller.own_worker._worker.held()["lost"] == 1
    return prefiller


@pytest.mark.parametrize("way", ["released", "fenced"])
def test_should_report_a_lost_prefill_that_was_released_before_its_end(engine: EngineMaker, way: str) -> None:
    """Its blocks would be held for good: no word of the messenger follows any more."""
    prefiller = lost(engine)
    if way == "released":
        prefiller.messenger.release(REQUEST)
    else:
        prefiller.preempt(REQUEST)
    prefiller.step()
    prefiller.messenger._owed.pop(REQUEST, None)
    prefiller.abort(REQUEST)
    prefiller.steps(3)
    assert REQUEST not in prefiller.requests
    assert len(prefiller.free_blocks) == prefiller.block_count
    assert prefiller.at_rest()
