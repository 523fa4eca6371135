"""A prefiller whose messenger does not answer for its pages: fences that do not come, and messengers that are lost."""

from __future__ import annotations

import pytest
from conftest import EngineMaker
from simulated_engine import remote_decode

from kv_connector import MessengerError

REQUEST = "cmpl-a-0-89abcdef"


def test_should_fence_a_request_that_is_lost(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.messenger.refuse.add("step")
    prefiller.step()
    prefiller.messenger.refuse.clear()
    prefiller.preempt(REQUEST)
    prefiller.step()
    assert prefiller.messenger.fenced == [[REQUEST]], "writes of its first chunk may still read its blocks"


def test_should_hold_nothing_that_a_lost_messenger_never_saw(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", extra={"on_messenger_lost": "stay"})
    prefiller.messenger.refuse.update({"poll", "close"})
    prefiller.steps(4)
    for index in range(10):
        prefiller.add(f"late-{index}-0000000{index}", 200, remote_decode())
        prefiller.steps(3)
    assert len(prefiller.free_blocks) == prefiller.block_count
    assert not prefiller.has_work()


def test_should_not_wait_for_ever_for_a_fence(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", extra={"on_messenger_lost": "stay"})
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.messenger.fence = lambda *_: []  # type: ignore[method-assign]
    prefiller.steps(5)
    assert prefiller.messenger.closed
    assert not prefiller.has_work()
    assert len(prefiller.free_blocks) == prefiller.block_count


def test_should_end_the_engine_rather_than_overwrite_pages_that_may_be_read(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.messenger.fence = lambda *_: []  # type: ignore[method-assign]
    prefiller.messenger.refuse.add("close")
    with pytest.raises(MessengerError, match="neither be fenced nor closed"):
        prefiller.step()


def test_should_give_a_messenger_up_that_cannot_be_polled(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller = engine("kv_producer", extra={"on_messenger_lost": "stay"})
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.steps(3)
    prefiller.messenger.refuse.add("poll")
    prefiller.steps(4)
    assert "given up" in caplog.text
    prefiller.add("next-01234567", 100, remote_decode())
    prefiller.steps(3)
    assert prefiller.ended["next-01234567"].name == "FINISHED_LENGTH_CAPPED"
    assert not prefiller.has_work()
    assert len(prefiller.free_blocks) == prefiller.block_count


def test_should_end_the_engine_when_its_messenger_is_lost(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.step()
    prefiller.messenger.refuse.add("poll")
    with pytest.raises(MessengerError, match=r"its messenger was lost \(.*no poll today.*on_messenger_lost to 'stay'"):
        prefiller.steps(10)


def test_should_hold_blocks_for_ever_when_the_messenger_cannot_even_be_closed(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", extra={"on_messenger_lost": "stay"})
    prefiller.add(REQUEST, 100, remote_decode())
    prefiller.step()
    prefiller.messenger.refuse.update({"poll", "close"})
    prefiller.steps(4)
    assert len(prefiller.free_blocks) == prefiller.block_count - 1


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("request_count", [0, 1, 3])
def test_should_take_the_gauges_of_a_lost_messenger_off_the_engines_page(
    engine: EngineMaker, request_count: int, *, closes: bool
) -> None:
    prefiller = engine("kv_producer", extra={"on_messenger_lost": "stay"})
    for index in range(request_count):
        prefiller.add(f"sent-{index}-0000000{index}", 200, remote_decode())
    prefiller.step()
    prefiller.messenger.refuse.update(set() if closes else {"close"})
    prefiller.own_worker._worker._client.give_up("it was ended")
    assert prefiller.worker.get_kv_connector_stats().data["gauges"] == {"7": {}}
    assert prefiller.worker.get_kv_connector_stats() is None
