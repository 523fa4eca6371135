"""An engine that comes to rest for other weights: no other engine waits for what it does not begin."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector.vllm.messenger_limits import GRANT_WAIT_AT_REST_SECONDS
from kv_connector.vllm.weight_changes import LOADED_AT_REST

REQUEST, OTHER = "chatcmpl-before-00000000", "chatcmpl-other-00000000"
TOKENS = 300
"""Of two passes."""
BEFORE, DURING = "before", "during"
BOTH = (False, True)


def comes_to_rest(engine: SimulatedEngine, *, finishes: bool = True) -> None:
    """As vLLM's scheduler: what has not begun stays in the queue, and the rest goes on."""
    engine.scheduler.on_coming_to_rest(finishes)
    engine.paused = True
    engine.step()


def goes_on(engine: SimulatedEngine, *, loaded: bool) -> None:
    if loaded:
        engine.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)
    engine.scheduler.on_going_on()
    engine.paused = False
    engine.step()


def ends_and_leaves_nothing(engine: SimulatedEngine) -> None:
    for _ in range(12):
        for request, owed in list(engine.messenger.owes().items()):
            if owed == "prefill":
                engine.messenger.release(request)
            elif owed == "fetch":
                engine.messenger.arrive(request)
        engine.step()
    assert engine.at_rest()


@contextmanager
def queued(engine: SimulatedEngine, params: dict[str, Any], arrived: str) -> Iterator[None]:
    """The engine comes to rest before the request arrives, or behind what is done within."""
    if arrived == DURING:
        comes_to_rest(engine)
    engine.add(REQUEST, TOKENS, params)
    engine.step()
    yield
    if arrived == BEFORE:
        comes_to_rest(engine)


def sent(engine: SimulatedEngine) -> list[str]:
    """The digests of the prompts that were sent to their ends."""
    return [digest for digest, outcome in engine.messenger.outcomes().items() if outcome == "finished"]


# ---- a prefiller


@pytest.mark.parametrize(
    ("granted", "arrived", "loaded"), list(itertools.product((BEFORE, DURING), (BEFORE, DURING), BOTH))
)
def test_should_give_up_what_a_decoder_waits_for_and_it_does_not_begin(
    engine: EngineMaker, granted: str, arrived: str, loaded: bool
) -> None:
    """That decoder may come to rest itself, and then ends only if the fetch does. It asks by no other name."""
    source = engine("kv_producer", chunk_tokens=0)
    with queued(source, remote_decode(), arrived):
        if granted == BEFORE:
            source.messenger.grant(REQUEST)
            source.step()
    if granted == DURING:
        source.messenger.grant(REQUEST)
    source.steps(2)
    assert [end["outcome"] for end in source.messenger.of_kind("prefillEnded")] == ["failed"]
    source.chunk_tokens = 256
    goes_on(source, loaded=loaded)
    ends_and_leaves_nothing(source)
    assert len(source.messenger.of_kind("announce")) == 1
    assert not source.messenger.chunks_of(REQUEST)
    assert source.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"


def test_should_give_up_what_is_granted_by_another_name(engine: EngineMaker) -> None:
    """Weights have changed once already, in another way, while it waited; its decoder has those."""
    source = engine("kv_producer", chunk_tokens=0)
    source.add(REQUEST, TOKENS, remote_decode())
    source.step()
    source.scheduler.on_weights_versioned("1")
    source.step()
    number = source.messenger.raw[-1]["request"]
    assert source.messenger.raw[-1]["do"] == "announce"
    source.messenger.grant(number)
    source.step()
    comes_to_rest(source)
    assert [end["outcome"] for end in source.messenger.of_kind("prefillEnded")] == ["failed"] * 2
    source.chunk_tokens = 256
    goes_on(source, loaded=True)
    ends_and_leaves_nothing(source)


@pytest.mark.parametrize(("arrived", "loaded"), list(itertools.product((BEFORE, DURING), BOTH)))
def test_should_send_what_waits_on_both_sides_by_the_name_of_its_weights(
    engine: EngineMaker, arrived: str, loaded: bool
) -> None:
    source = engine("kv_producer", chunk_tokens=0)
    with queued(source, remote_decode(), arrived):
        pass
    assert not source.messenger.of_kind("prefillEnded")
    source.chunk_tokens = 256
    goes_on(source, loaded=loaded)
    source.add(OTHER, TOKENS, remote_decode())
    ends_and_leaves_nothing(source)
    announced = [announce["promptDigest"] for announce in source.messenger.of_kind("announce")]
    assert sent(source) == ([announced[1]] if loaded else [announced[0]])


@pytest.mark.parametrize("granted", BOTH)
@pytest.mark.parametrize("preempted", BOTH)
def test_should_send_what_is_under_way_by_its_name(engine: EngineMaker, granted: bool, preempted: bool) -> None:
    source = engine("kv_producer")
    source.add(REQUEST, TOKENS, remote_decode(), max_tokens=3)
    source.step()
    if granted:
        source.messenger.grant(REQUEST)
        source.step()
    if preempted:
        source.preempt(REQUEST)
    source.scheduler.on_coming_to_rest(True)
    source.steps(5)
    assert [end["outcome"] for end in source.messenger.of_kind("prefillEnded")] == ["finished"]
    source.scheduler.on_going_on()
    ends_and_leaves_nothing(source)


def test_should_give_up_what_was_preempted_and_granted_anew(engine: EngineMaker) -> None:
    """vLLM begins it with new requests, once the engine goes on."""
    source = engine("kv_producer")
    source.add(REQUEST, TOKENS, remote_decode(), max_tokens=3)
    source.step()
    source.preempt(REQUEST)
    source.paused = True
    source.step()
    source.messenger.grant(REQUEST)
    source.step()
    comes_to_rest(source)
    assert [end["outcome"] for end in source.messenger.of_kind("prefillEnded")] == ["failed"]
    goes_on(source, loaded=True)
    ends_and_leaves_nothing(source)


class Clock:
    now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


@pytest.mark.parametrize(("ended", "finishes"), [(BEFORE, True), (DURING, True), (BEFORE, False)])
@pytest.mark.parametrize("granted", ["", "before its end", "after its end"])
def test_should_hold_kv_for_a_leg_that_never_comes_for_a_short_time(
    engine: EngineMaker, ended: str, finishes: bool, granted: str
) -> None:
    source = engine("kv_producer")
    clock = source.own_scheduler._half.rest._now_seconds = Clock()
    source.add(REQUEST, 2 * TOKENS, remote_decode())
    source.step()
    if granted == "before its end":
        source.messenger.grant(REQUEST)
        source.step()
    if ended == DURING:
        source.scheduler.on_coming_to_rest(True)
    source.steps(3)
    if ended == BEFORE:
        comes_to_rest(source, finishes=finishes)
    if granted == "after its end":
        source.messenger.grant(REQUEST)
        source.step()
    clock.now_seconds += GRANT_WAIT_AT_REST_SECONDS - 1
    source.steps(2)
    assert not source.messenger.expired
    assert source.has_work()
    clock.now_seconds += 2
    source.steps(3)
    assert source.messenger.expired == ([] if granted else [REQUEST])
    source.scheduler.on_going_on()
    ends_and_leaves_nothing(source)


def test_should_hold_kv_for_as_long_as_ever_where_no_weights_come(engine: EngineMaker) -> None:
    source = engine("kv_producer")
    clock = source.own_scheduler._half.rest._now_seconds = Clock()
    source.add(REQUEST, TOKENS, remote_decode())
    source.steps(2)
    comes_to_rest(source)
    goes_on(source, loaded=True)
    clock.now_seconds += 10 * GRANT_WAIT_AT_REST_SECONDS
    source.steps(2)
    assert not source.messenger.expired
    ends_and_leaves_nothing(source)


@pytest.mark.parametrize("loaded", BOTH)
@pytest.mark.parametrize("side", ["prefiller", "decoder"])
def test_should_give_up_nothing_that_it_is_to_begin_where_requests_freeze(
    engine: EngineMaker, side: str, loaded: bool
) -> None:
    """It loads at once, or is refused: no other engine waits for long."""
    frozen = engine("kv_producer" if side == "prefiller" else "kv_consumer", chunk_tokens=0)
    frozen.add(REQUEST, TOKENS, remote_decode() if side == "prefiller" else remote_prefill())
    frozen.step()
    if side == "prefiller":
        frozen.messenger.grant(REQUEST)
    else:
        frozen.messenger.prefilled(frozen.messenger.of_kind("expect")[0]["transfer"])
    frozen.step()
    comes_to_rest(frozen, finishes=False)
    frozen.steps(2)
    assert not frozen.messenger.of_kind("prefillEnded")
    assert not frozen.messenger.of_kind("decline")
    frozen.chunk_tokens = 256
    goes_on(frozen, loaded=loaded)
    ends_and_leaves_nothing(frozen)
    assert len(sent(frozen)) == (side == "prefiller")
    assert len(frozen.messenger.of_kind("fetch")) == (side == "decoder" and not loaded)


def test_should_offer_nothing_while_it_comes_to_rest(engine: EngineMaker) -> None:
    both = engine("kv_both")
    offers = both.own_scheduler._half._offers
    both.scheduler.on_coming_to_rest(True)
    assert offers.none_now
    both.scheduler.on_going_on()
    assert not offers.none_now


# ---- a decoder


@pytest.mark.parametrize(
    ("computed", "arrived", "loaded", "recompute"),
    list(itertools.product((BEFORE, DURING), (BEFORE, DURING), BOTH, BOTH)),
)
def test_should_decline_what_is_computed_for_a_request_that_waits_and_compute_it(
    engine: EngineMaker, computed: str, arrived: str, loaded: bool, recompute: bool
) -> None:
    """Its prefiller may come to rest itself, and then ends only if nothing waits to be fetched."""
    target = engine("kv_consumer", chunk_tokens=0, recompute=recompute)
    with queued(target, remote_prefill(), arrived):
        (expected,) = target.messenger.of_kind("expect")
        if computed == BEFORE:
            target.messenger.prefilled(expected["transfer"])
            target.step()
    if computed == DURING:
        target.messenger.prefilled(expected["transfer"])
    target.steps(2)
    (declined,) = target.messenger.of_kind("decline")
    assert declined["promptDigest"] == expected["promptDigest"]
    target.chunk_tokens = 256
    goes_on(target, loaded=loaded)
    ends_and_leaves_nothing(target)
    assert not target.messenger.of_kind("fetch")
    assert target.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"


@pytest.mark.parametrize(("arrived", "loaded"), list(itertools.product((BEFORE, DURING), BOTH)))
def test_should_fetch_what_waits_on_both_sides_by_the_name_of_its_weights(
    engine: EngineMaker, arrived: str, loaded: bool
) -> None:
    target = engine("kv_consumer", chunk_tokens=0)
    with queued(target, remote_prefill(), arrived):
        pass
    (before,) = target.messenger.of_kind("expect")
    assert not target.messenger.of_kind("decline")
    target.chunk_tokens = 256
    goes_on(target, loaded=loaded)
    target.step()
    (fetch,) = target.messenger.of_kind("fetch")
    assert (fetch["promptDigest"] == before["promptDigest"]) == (not loaded)
    ends_and_leaves_nothing(target)


# ---- what a prefiller's answer names


@pytest.mark.parametrize("recompute", BOTH)
def test_should_not_wait_for_kv_that_the_prefiller_s_answer_says_is_other(engine: EngineMaker, recompute: bool) -> None:
    """Weights have changed between the two legs: no prefill of the decoder's name will ever come."""
    source, target = engine("kv_producer"), engine("kv_consumer", recompute=recompute)
    source.add(REQUEST, 20, remote_decode())
    source.steps(2)
    target.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)
    target.add(REQUEST, 20, remote_prefill(source.answers[REQUEST]))
    target.steps(5)
    assert target.messenger.of_kind("fetch") == []
    (declined,) = target.messenger.of_kind("decline")
    assert declined["promptDigest"] == source.messenger.of_kind("announce")[0]["promptDigest"]
    assert target.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert target.at_rest()


def test_should_fetch_what_the_prefiller_s_answer_names(engine: EngineMaker) -> None:
    source, target = engine("kv_producer"), engine("kv_consumer")
    source.add(REQUEST, 20, remote_decode())
    source.steps(2)
    target.add(REQUEST, 20, remote_prefill(source.answers[REQUEST]))
    target.step()
    (fetch,) = target.messenger.of_kind("fetch")
    assert fetch["promptDigest"] == source.answers[REQUEST]["remote_prompt_digest"]


@pytest.mark.parametrize("digest", [7, "x" * 129, "a\nb", ["a"]])
def test_should_refuse_a_digest_of_another_form(
    engine: EngineMaker, digest: object, caplog: pytest.LogCaptureFixture
) -> None:
    target = engine("kv_consumer")
    target.add(REQUEST, 20, remote_prefill(remote_prompt_digest=digest))
    target.steps(3)
    assert target.ended[REQUEST].name == "FINISHED_ERROR"
    assert "kv_transfer_params.remote_prompt_digest is" in caplog.text
