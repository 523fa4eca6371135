"""An engine that sleeps and wakes up: its messenger is another one, and each request ends once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill
from test_proofs_in_steps import Judge, connect

from kv_connector import Arrived, MessengerError
from kv_connector.exceptions import OptionError

TOKENS = 300

Act = Callable[[SimulatedEngine], None]


def nothing(_engine: SimulatedEngine) -> None:
    """Leaves the engine as it is."""


def asked_of(engine: SimulatedEngine) -> dict[str, Any]:
    return remote_decode() if engine.is_prefiller else remote_prefill()


# ---- before a sleep, and during it


def has_queued(engine: SimulatedEngine) -> None:
    """A request waits in the queue, and the messenger knows of it."""
    has_been_queueing(engine)
    engine.step()


def has_been_queueing(engine: SimulatedEngine) -> None:
    """A request waits in the queue, and no step has told the messenger so."""
    engine.paused = True
    engine.add("early", TOKENS, asked_of(engine))


def has_sent(engine: SimulatedEngine) -> None:
    engine.add("sent", TOKENS, remote_decode())
    engine.steps(3)
    engine.messenger.release("sent")
    engine.step()


def has_given_up(engine: SimulatedEngine) -> None:
    """What was sent of a request that goes on is no longer sent."""
    engine.add("early", 700, remote_decode())
    engine.step()
    engine.messenger.refuse.add("step")
    engine.step()
    engine.preempt("early")
    engine.paused = True
    engine.step()


def has_preempted(engine: SimulatedEngine) -> None:
    """As vLLM's mode "keep": the request is computed again after the sleep."""
    engine.add("early", 700, remote_decode())
    engine.step()
    engine.preempt("early")


def gets_another(engine: SimulatedEngine) -> None:
    engine.add("late", TOKENS, asked_of(engine))


def gets_another_in_a_step(engine: SimulatedEngine) -> None:
    gets_another(engine)
    engine.step()


def loses_all(engine: SimulatedEngine) -> None:
    """Clients go away; vLLM steps until the connector lets it rest."""
    gets_another_in_a_step(engine)
    for request in list(engine.requests):
        engine.abort(request)
    engine.steps(3)
    assert not engine.has_work()


BEFORE_PREFILLER = (nothing, has_sent, has_queued, has_been_queueing, has_given_up, has_preempted)
BEFORE_DECODER = (nothing, has_queued, has_been_queueing)
MEANWHILE = (nothing, gets_another, gets_another_in_a_step, loses_all)
SLEEPS = ("once", "twice", "two nights")


def table() -> Iterator[tuple[str, Act, Act, str]]:
    for role, before in (("kv_producer", BEFORE_PREFILLER), ("kv_consumer", BEFORE_DECODER)):
        yield from itertools.product((role,), before, MEANWHILE, SLEEPS)


@pytest.mark.parametrize(("role", "before", "meanwhile", "sleeps"), list(table()))
def test_should_end_each_request_once_whenever_the_engine_sleeps(
    engine: EngineMaker, role: str, before: Act, meanwhile: Act, sleeps: str
) -> None:
    made = engine(role)
    before(made)
    nights = 2 if sleeps == "two nights" else 1
    for _ in range(nights):
        old = made.messenger
        made.sleep()
        if sleeps == "twice":
            made.sleep()
        assert old.closed
        assert old.closed_why == "goes to sleep, and gives its KV memory back"
        assert made.own_worker._part.stand_in.open
        if made.messenger is made.messengers[0]:
            meanwhile(made)
        made.wake()
        assert made.messenger is not old
    assert len(made.messengers) == 1 + nights
    answer_all(made)
    assert {status.name for status in made.ended.values()} <= {"FINISHED_LENGTH_CAPPED", "FINISHED_ABORTED"}
    assert not made.requests
    assert made.at_rest()


def answer_all(engine: SimulatedEngine) -> None:
    """The messenger does what it is asked for, until nothing is left."""
    for _ in range(20):
        engine.messenger.refuse.clear()
        engine.step()
        for request, kind in engine.messenger.owes().items():
            engine.messenger.release(request) if kind == "prefill" else engine.messenger.arrive(request)
        if not engine.has_work():
            return
    raise AssertionError(f"the engine does not come to rest: {engine.requests}")


# ---- single cases


def test_should_not_give_back_memory_that_a_prefiller_may_write_to(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add("r", TOKENS, remote_prefill())
    decoder.step()
    with pytest.raises(MessengerError, match=r"KV memory cannot be given back: 1 requests have pages .* expected none"):
        decoder.sleep()
    decoder.paused = False
    assert not decoder.messenger.closed
    answer_all(decoder)
    decoder.sleep()
    decoder.wake()
    assert decoder.at_rest()


def test_should_not_give_back_memory_in_quarantine(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add("r", TOKENS, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine("r")
    decoder.steps(2)
    assert decoder.ended["r"].name == "FINISHED_ERROR"
    with pytest.raises(MessengerError, match="cannot be given back"):
        decoder.sleep()
    decoder.paused = False
    decoder.messenger.events.append(Arrived("r", 1))
    decoder.messenger._owed.clear()
    decoder.sleep()
    decoder.wake()
    decoder.steps(2)
    assert decoder.at_rest()


def test_should_not_give_back_memory_of_a_messenger_that_cannot_be_closed(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.messenger.refuse.add("close")
    with pytest.raises(MessengerError, match="no close today"):
        prefiller.sleep()
    assert not prefiller.own_worker._part.is_asleep


def test_should_do_nothing_on_waking_up_without_a_sleep(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.worker.restore_kv_caches()
    assert len(prefiller.messengers) == 1
    has_sent(prefiller)
    assert prefiller.at_rest()


def test_should_keep_its_ports(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", extra={"listen_port": 0})
    port = prefiller.messenger.opened.control_port
    prefiller.sleep()
    prefiller.wake()
    assert prefiller.messenger.options.listen_port == port
    assert prefiller.messenger.options.metrics_port == 45679


def test_should_answer_with_the_address_of_the_messenger_that_is_open(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", extra={"listen_port": 0})
    prefiller.sleep()
    prefiller.own_worker._part.stand_in.options = prefiller.own_worker._facts.options.of_rank(0)
    prefiller.wake()
    has_sent(prefiller)
    assert prefiller.answers["sent"]["remote_port"] == prefiller.messenger.opened.control_port


def test_should_take_its_gauges_off_the_engines_page(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.sleep()
    report = decoder.worker.get_kv_connector_stats()
    assert report.data["gauges"] == {"7": {}}
    assert report.reduce() == {}
    assert decoder.worker.get_kv_connector_stats() is None
    assert decoder.worker.get_handshake_metadata() is None


def test_should_prove_each_pair_again(engine: EngineMaker) -> None:
    """Both engines may have other weights than before, and a decoder's own KV is that of the weights it has now."""
    judge = Judge()
    decoder = engine("kv_consumer")
    decoder.compare_last_tokens(judge)
    for night in range(2):
        connect(decoder, "7")
        decoder.step()
        first, second = f"first-{night}", f"second-{night}"
        for request in (first, second):
            decoder.add(request, TOKENS, remote_prefill())
        decoder.steps(2)
        fetched = [fetch["request"] for fetch in decoder.messenger.of_kind("fetch")]
        assert fetched == [first], "the other one waits for the verdict"
        answer_all(decoder)
        assert [proof.request for proof in judge.seen], "compared"
        judge.seen.clear()
        assert decoder.at_rest()
        decoder.sleep()
        decoder.wake()
        decoder.compare_last_tokens(judge)


def test_should_check_the_first_pass_of_each_messenger(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    half = prefiller.own_scheduler._half
    half._open.counted_right = 1
    prefiller.sleep()
    prefiller.wake()
    assert half._open.counted_right == 0


@pytest.mark.parametrize("sleeps", [True, False])
@pytest.mark.parametrize("unmaps", [True, False])
def test_should_refuse_to_start_where_nothing_reports_a_sleep(
    vllm_release: Release, sleeps: bool, unmaps: bool
) -> None:
    """`/sleep` is served with and without sleep mode, and unmaps what the cumem allocator gave out."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(enable_sleep_mode=sleeps, enable_cumem_allocator=unmaps),
        device_config=SimpleNamespace(device_type="cuda"),
    )
    assert vllm_release.vllm_api.reports_sleep() == (vllm_release.name != "0.32.0")
    refuse = vllm_release.engine_facts.refuse_sleep
    refuse(config, reports_sleep=True)
    if sleeps or unmaps:
        name = "enable_sleep_mode" if sleeps else "enable_cumem_allocator"
        with pytest.raises(OptionError, match=rf"{name} is True, expected False, .* or take vLLM 0.33"):
            refuse(config, reports_sleep=False)
    else:
        refuse(config, reports_sleep=False)
    config.device_config.device_type = "cpu"
    refuse(config, reports_sleep=False)
