"""Weights that are changed, in any of vLLM's ways, while prompts wait: no decoder gets KV of others than its own.

And no prompt that waits on both sides is lost to two sides that get the same weights, in whichever order.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

from kv_connector.vllm.weight_changes import LOADED_AT_REST

REQUEST, LATER, FILLER = "cmpl-a-0-11111111", "cmpl-a-0-22222222", "cmpl-b-0-33333333"
TOKENS = 300
"""Of two passes."""
QUEUED, BEGUN, COMPUTED = range(3)
"""How many passes of its prompt have run when the weights change."""

Change = Callable[[SimulatedEngine], None]


def called(*methods: Any) -> Change:
    def change(engine: SimulatedEngine) -> None:
        for method in methods:
            engine.scheduler.on_weights_called(method, (), {}, None)

    return change


def of_a_user(worker: Any) -> None:
    """Sent to the workers."""


def versioned(engine: SimulatedEngine) -> None:
    engine.scheduler.on_weights_versioned("step 7")


def lost(engine: SimulatedEngine) -> None:
    engine.scheduler.on_weights_called("reload_weights", (), {}, RuntimeError("on the way"))


def at_rest(engine: SimulatedEngine) -> None:
    engine.scheduler.on_weights_called(LOADED_AT_REST, ("7", "ab"), {}, None)


SENT = ("start_weight_update", "update_weights", "update_weights", "finish_weight_update")
WAYS: dict[str, Change] = {
    "reloaded": called("reload_weights"),
    "sent": called(*SENT),
    "sent without an end": called("start_weight_update", "update_weights"),
    "sent and named": lambda engine: (called(*SENT)(engine), versioned(engine))[-1],
    "versioned": versioned,
    "by a user": called(of_a_user),
    "lost": lost,
    "at rest": at_rest,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def digests_of_queued(engine: SimulatedEngine) -> list[str]:
    return [announce["promptDigest"] for announce in engine.messenger.of_kind("announce")]


def ends_of_names(engine: SimulatedEngine) -> dict[str, str]:
    """How the prefill of each digest that was announced has ended."""
    ended = {end["request"]: end["outcome"] for end in engine.messenger.of_kind("prefillEnded")}
    announced = {each["promptDigest"]: each["request"] for each in engine.messenger.of_kind("announce")}
    return {digest: ended.get(request, "not") for digest, request in announced.items()}


def release_all(engine: SimulatedEngine) -> None:
    for request, kind in list(engine.messenger.owes().items()):
        if kind == "prefill":
            engine.messenger.release(request)


def sent_under(engine: SimulatedEngine) -> list[str]:
    """The digests of what was sent to its end."""
    while engine.requests:
        engine.step()
        release_all(engine)
    engine.steps(2)
    release_all(engine)
    engine.steps(2)
    assert engine.at_rest()
    ended = {end["request"]: end["outcome"] for end in engine.messenger.of_kind("prefillEnded")}
    chunks = engine.messenger.chunks_of(REQUEST)
    return [chunk["promptDigest"] for chunk in chunks if chunk["endToken"] == TOKENS and ended[REQUEST] == "finished"]


@every_way
@pytest.mark.parametrize("passes", [QUEUED, BEGUN, COMPUTED])
def test_should_send_a_prompt_by_the_name_of_the_weights_that_compute_it(
    engine: EngineMaker, way: Change, passes: int
) -> None:
    source = engine("kv_producer")
    source.add(REQUEST, TOKENS, remote_decode(), max_tokens=2)
    source.step() if passes else None
    source.steps(max(0, passes - 1))
    (before,) = digests_of_queued(source) or [""]
    way(source)
    other = engine("kv_producer")
    way(other)
    other.add(REQUEST, TOKENS, remote_decode())
    other.step()
    (now,) = digests_of_queued(other)
    sent = sent_under(source)
    if passes == BEGUN:
        assert not sent, "part of it is of either"
        assert set(ends_of_names(source).values()) == {"failed"}
        if way not in (WAYS["lost"], WAYS["sent without an end"]):
            assert ends_of_names(source).keys() == {before, now}, "a decoder that asks by either computes it at once"
    elif passes == COMPUTED:
        assert sent == [before]
    elif way in (WAYS["lost"], WAYS["sent without an end"]):
        assert sent not in ([before], [now]), "each engine has a word of its own for what it does not know"
    else:
        assert sent == [now] != [before]


def test_should_send_by_its_first_name_what_is_computed_with_the_weights_of_then(engine: EngineMaker) -> None:
    """They come back before its pass."""
    source = engine("kv_producer")
    source.paused = True
    source.add(REQUEST, TOKENS, remote_decode())
    source.step()
    for version in ("1", "2", "", "1"):
        source.scheduler.on_weights_versioned(version)
        source.step()
    (first, *others) = digests_of_queued(source)
    assert len({first, *others}) == len(others) + 1, "it is announced once by each"
    source.scheduler.on_weights_called("reload_weights", (), {}, None)
    source.paused = False
    assert sent_under(source)[0] not in (first, *others[:2])


@pytest.mark.parametrize("is_known", [False, True])
def test_should_end_all_names_of_a_prompt_that_is_aborted(engine: EngineMaker, is_known: bool) -> None:
    source = engine("kv_producer")
    source.paused = True
    source.add(REQUEST, TOKENS, remote_decode())
    source.step()
    for version in ("1", "2"):
        source.scheduler.on_weights_versioned(version)
    if is_known:
        source.step()
    source.abort(REQUEST)
    source.steps(2)
    release_all(source)
    source.steps(2)
    assert source.at_rest()
    assert [end["outcome"] for end in source.messenger.of_kind("prefillEnded")] == ["aborted"] * 3


def test_should_compute_and_send_anew_what_lost_its_blocks_before_the_change(engine: EngineMaker) -> None:
    """As a trainer's pause takes them."""
    source = engine("kv_producer")
    source.add(REQUEST, TOKENS, remote_decode(), max_tokens=3)
    source.steps(BEGUN)
    (before,) = digests_of_queued(source)
    source.preempt(REQUEST)
    source.paused = True
    source.step()
    versioned(source)
    source.paused = False
    sent = sent_under(source)
    assert len(sent) == 1
    assert sent != [before]


@every_way
@pytest.mark.parametrize("is_computed", [False, True])
def test_should_fetch_what_its_own_weights_compute_or_compute_it(
    engine: EngineMaker, way: Change, is_computed: bool
) -> None:
    """``is_computed``: the prefiller has reported that the prompt is computed, by the weights of before."""
    target = engine("kv_consumer")
    target.paused = True
    target.add(REQUEST, TOKENS, remote_prefill())
    target.step()
    (expected,) = target.messenger.of_kind("expect")
    if is_computed:
        target.messenger.prefilled(expected["transfer"])
        target.step()
    way(target)
    target.steps(2)
    other = engine("kv_consumer")
    way(other)
    target.paused = False
    target.steps(3)
    fetched = [fetch["promptDigest"] for fetch in target.messenger.of_kind("fetch")]
    declined = [decline["promptDigest"] for decline in target.messenger.of_kind("decline")]
    open_update = way is WAYS["sent without an end"]
    if not open_update:
        assert expected["promptDigest"] in declined
        assert len(fetched) == (not is_computed)
    assert expected["promptDigest"] not in fetched or open_update
    if is_computed and not open_update:
        assert target.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    for request in list(target.messenger.owes()):
        target.messenger.arrive(request)
    target.steps(4)
    assert target.at_rest()


@every_way
@pytest.mark.parametrize("recompute", [False, True])
def test_should_not_use_what_arrives_by_the_name_of_before(engine: EngineMaker, way: Change, recompute: bool) -> None:
    target = engine("kv_consumer", recompute=recompute)
    target.add(REQUEST, TOKENS, remote_prefill())
    target.steps(2)
    way(target)
    target.step()
    target.messenger.arrive(REQUEST)
    target.steps(4)
    if way is WAYS["sent without an end"]:
        return  # as KV that was there when the update began
    assert target.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert target.own_scheduler._half.is_idle()
    assert target.at_rest()


@every_way
def test_should_ask_by_the_new_name_when_the_old_one_has_ended(engine: EngineMaker, way: Change) -> None:
    target = engine("kv_consumer")
    target.add(REQUEST, TOKENS, remote_prefill())
    target.steps(2)
    way(target)
    target.step()
    target.messenger.fail(REQUEST, "the prefiller computes it by another name")
    target.steps(2)
    fetches = target.messenger.of_kind("fetch")
    if way is WAYS["sent without an end"]:
        assert len(fetches) == 1
        return
    before, now = fetches
    assert before["promptDigest"] != now["promptDigest"]
    assert {**now, "promptDigest": "", "limitMillis": 0} == {**before, "promptDigest": "", "limitMillis": 0}
    target.add(LATER, TOKENS, remote_prefill())
    target.steps(2)
    assert target.messenger.of_kind("fetch")[-1]["promptDigest"] == now["promptDigest"]
    for request in list(target.messenger.owes()):
        target.messenger.arrive(request)
    target.steps(4)
    assert target.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert target.at_rest()


def test_should_not_have_a_prefill_wait_for_a_fetch_that_failed(engine: EngineMaker) -> None:
    """Its prefiller may have computed the prompt by another name, for which nothing asks."""
    target = engine("kv_consumer", recompute=True)
    target.add(REQUEST, TOKENS, remote_prefill())
    target.steps(2)
    target.messenger.fail(REQUEST, "the prefiller computes it by another name")
    target.steps(4)
    (rejected,) = target.messenger.of_kind("reject")
    assert rejected["transfer"] == target.messenger.of_kind("fetch")[0]["transfer"]
    assert target.at_rest()


def test_should_ask_no_more_for_a_request_that_was_aborted(engine: EngineMaker) -> None:
    target = engine("kv_consumer")
    target.add(REQUEST, TOKENS, remote_prefill())
    target.steps(2)
    versioned(target)
    target.step()
    target.abort(REQUEST)
    target.step()
    target.messenger.fail(REQUEST, "taken back")
    target.steps(3)
    assert len(target.messenger.of_kind("fetch")) == 1
    assert target.at_rest()


class Pair:
    """A prefiller and its decoder, whose messengers agree upon names, and nothing else."""

    def __init__(self, engine: EngineMaker) -> None:
        self.source, self.target = engine("kv_producer"), engine("kv_consumer")
        self.computed: dict[str, str] = {}
        """The weights that have computed what was sent, by digest."""
        self.versions = {"source": "", "target": ""}
        self.used: str | None = None
        """The weights of the KV that has arrived, and was used."""
        self._seen = 0

    def change(self, side: str, version: str) -> None:
        getattr(self, side).scheduler.on_weights_versioned(version)
        self.versions[side] = version

    def link(self) -> None:
        """What the messengers bring about."""
        for command in self.source.messenger.commands[self._seen :]:
            for chunk in command.get("chunks", ()):
                self.computed[chunk["promptDigest"]] = self.versions["source"]
        self._seen = len(self.source.messenger.commands)
        if "fetch" not in self.target.messenger.owes().values():
            return
        asked = self.target.messenger.of_kind("fetch")[-1]["promptDigest"]
        ends = self.source.messenger.of_kind("prefillEnded")
        announced = {each["promptDigest"] for each in self.source.messenger.of_kind("announce")}
        if asked in self.computed and any(end["outcome"] == "finished" for end in ends):
            self.target.messenger.arrive(REQUEST)
            release_all(self.source)
        elif asked in announced and ends:
            self.target.messenger.fail(REQUEST, "aborted")


EVENTS = ("source", "target", "source passes", "target passes")


@pytest.mark.parametrize("order", list(itertools.permutations(EVENTS)), ids=" - ".join)
@pytest.mark.parametrize("seed", range(4))
def test_should_serve_what_waits_while_both_sides_get_the_same_weights_in_any_order(
    engine: EngineMaker, order: tuple[str, ...], seed: int
) -> None:
    """Each pass begins when its side is there; the prompt is computed by the weights of both, or not at all."""
    rng, pair = random.Random(seed), Pair(engine)
    sides = {"source": pair.source, "target": pair.target}
    for name, side in sides.items():
        side.paused = True
        side.add(REQUEST, TOKENS, remote_decode() if name == "source" else remote_prefill())
        side.steps(rng.randrange(2))
    for event in order:
        name, _, passes = event.partition(" ")
        if passes:
            sides[name].paused = False
            sides[name].steps(3)
        else:
            pair.change(name, "step 8")
        for side in sides.values():
            side.steps(rng.randrange(2))
        pair.link()
    for _ in range(6):
        pair.source.step()
        pair.target.step()
        pair.link()
    if order.index("source passes") > order.index("source"):
        assert pair.computed
    ended = pair.target.ended.get(REQUEST)
    if order.index("source passes") > max(order.index("source"), order.index("target")):
        assert ended is not None
        assert ended.name == "FINISHED_LENGTH_CAPPED"
        (digest,) = pair.computed
        assert pair.target.messenger.of_kind("fetch")[-1]["promptDigest"] == digest
        assert pair.computed[digest] == "step 8"
