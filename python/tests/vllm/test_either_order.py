"""Every pair of events of the table in docs/protocol.md, in both orders, through both halves of vLLM's connector.

``EitherOrderTest`` in Java makes the table, and plays the pairs with two messengers. Here a prefiller and a decoder are
simulated engines with the real halves, and ``Story`` stands in for their messengers and the wire between these. Each
request ends once, nothing stays held on either side, and both orders end the same where the table says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import release
import vllm_sources
from conftest import EngineMaker
from either_order import Legs, Pair, pairs, table
from release import Status
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill

RELEASE = "0.32.0"
"""One release is enough here: the other tests of this folder show where another one differs."""

UNPLAYED = {"WEIGHTS_CHANGED": "vLLM calls another method for it: test_weight_changes.py"}
PREFILL, DECODE = "cmpl-p-0-11111111", "cmpl-d-0-22222222"
TOKENS = 700
BUDGET = 256
PREFILL_LEG = ("ANNOUNCED", "BEGUN", "ENDED", "ABORTED", "PREEMPTED", "PREFILL_EXPIRED")
DECODE_LEG = ("EXPECTED", "GRANTED", "DECLINED", "CANCELLED", "UNHEARD", "FETCH_EXPIRED")
BEFORE = {
    "BEGUN": ["ANNOUNCED"],
    **{event: ["ANNOUNCED", "BEGUN"] for event in ("ENDED", "ABORTED", "PREEMPTED")},
    "PREFILL_EXPIRED": ["ANNOUNCED", "BEGUN", "ENDED"],
    **{event: ["GRANTED"] for event in ("CANCELLED", "UNHEARD", "FETCH_EXPIRED")},
}
AFTER = {"ANNOUNCED": ["BEGUN", "ENDED"], "BEGUN": ["ENDED"], "PREEMPTED": ["BEGUN", "ENDED"], "EXPECTED": ["GRANTED"]}
LEGS = Legs(PREFILL_LEG, DECODE_LEG, BEFORE, AFTER)
RESTS = ("never", "before", "after")


@dataclass(frozen=True)
class Setting:
    rest: str
    """When a leg that the pair does not touch happens."""
    other_first: bool
    steps_between: int
    recompute: bool


def settings() -> Iterator[Setting]:
    for index, combination in enumerate(itertools.product(RESTS, (False, True), (0, 1))):
        yield Setting(*combination, recompute=index % 3 == 0)


class Story:
    """One transfer between two engines, whose messengers do what docs/protocol.md says of each event."""

    def __init__(self, engine: EngineMaker, setting: Setting) -> None:
        self.prefiller = engine("kv_producer", chunk_tokens=0)
        self.decoder = engine("kv_consumer", chunk_tokens=0, recompute=setting.recompute)
        self._steps_between = setting.steps_between
        self._granted = False
        self._reachable = True
        """Whether the decoder's last grant may still be served."""
        self._rejected = 0
        self._arrived = False

    def play(self, events: list[str]) -> tuple[Status | None, bool]:
        """How the prefill ended, and whether its KV arrived. Whether a fetch that did not bring it is an error or an
        abort to the decoder's engine is for the order to say: a request ends once.
        """
        for event in events:
            getattr(self, f"_on_{event.lower()}")()
            self._settle()
            for _ in range(self._steps_between):
                self._step_both()
        self._finish()
        assert len(self.prefiller.ended) <= 1
        assert len(self.decoder.ended) <= 1 + self._rejected
        return self.prefiller.ended.get(PREFILL), self._arrived

    # ---- the prefill leg

    def _on_announced(self) -> None:
        self.prefiller.add(PREFILL, TOKENS, remote_decode(transfer_id="t"))
        self.prefiller.step()

    def _on_begun(self) -> None:
        self._step_with(self.prefiller, BUDGET)

    def _on_ended(self) -> None:
        self._step_with(self.prefiller, TOKENS)
        assert PREFILL in self.prefiller.ended
        self.prefiller.step()

    def _on_aborted(self) -> None:
        self.prefiller.abort(PREFILL)
        self.prefiller.step()

    def _on_preempted(self) -> None:
        self.prefiller.preempt(PREFILL)
        self.prefiller.step()
        assert self.prefiller.messenger.fenced[-1] == [PREFILL], "its blocks may be read while they have a new owner"

    def _on_prefill_expired(self) -> None:
        if PREFILL in self.prefiller.messenger.owes():
            self.prefiller.messenger.release(PREFILL)
        self.prefiller.step()

    # ---- the decode leg

    def _on_expected(self) -> None:
        params = remote_prefill(transfer_id="t")
        self.decoder.add(DECODE, TOKENS, params)
        self.decoder.step()

    def _on_granted(self) -> None:
        if DECODE not in self.decoder.requests:
            self._on_expected()
        self._step_with(self.decoder, BUDGET)
        self._reachable = True

    def _on_declined(self) -> None:
        self._on_expected()
        self.decoder.abort(DECODE)
        self.decoder.step()

    def _on_cancelled(self) -> None:
        if DECODE not in self.decoder.ended:
            self.decoder.abort(DECODE)
        self.decoder.step()

    def _on_unheard(self) -> None:
        if PREFILL not in self.prefiller.requests and PREFILL not in self.prefiller.ended:
            self._fail("the prefiller has not heard of it")

    def _on_fetch_expired(self) -> None:
        if self._fetching():
            self.decoder.messenger.quarantine(DECODE)
            self.decoder.step()
        self._fail("fetch_limit_seconds are over")

    # ---- neither

    def _on_rejected(self) -> None:
        self._rejected += 1
        self.decoder.add_ended(f"kv-transfer-rejected-{self._rejected}", remote_prefill(transfer_id="t"))
        self.decoder.step()

    def _on_link_lost(self) -> None:
        if self._fetching():
            self._reachable = False
        self._fail("the control link ended")

    # ---- the messengers and the wire

    def _settle(self) -> None:
        """What has become possible happens: a grant, an arrival, the end of a cancelled fetch, a release."""
        commands = {command["do"] for command in self.decoder.messenger.commands}
        if self._fetching() and "abandon" in commands:
            self._fail("the engine gave the request up")
        known = PREFILL in self.prefiller.requests
        if self._fetching() and known and not self._granted and PREFILL not in self.prefiller.ended:
            self._granted = True
            self.prefiller.messenger.grant(PREFILL)
        owed = PREFILL in self.prefiller.messenger.owes()
        finished = self.prefiller.ended.get(PREFILL) == Status.FINISHED_LENGTH_CAPPED
        if owed and self._fetching() and finished:
            self._arrived = True
            self.decoder.messenger.arrive(DECODE)
        elif owed and self._fetching():
            self._fail("the prefill was aborted")
        if owed and (not finished or (self._fetched() and not self._fetching()) or "decline" in commands):
            self.prefiller.messenger.release(PREFILL)

    def _fetching(self) -> bool:
        return DECODE in self.decoder.messenger.owes()

    def _fetched(self) -> bool:
        return bool(self.decoder.messenger.of_kind("fetch")) and self._reachable

    def _fail(self, reason: str) -> None:
        if self._fetching():
            self.decoder.messenger.fail(DECODE, reason)
        self.decoder.step()

    def _finish(self) -> None:
        """The engines go on, and what still waits is ended by its limit."""
        for _ in range(3):
            self._step_both(BUDGET)
            self._settle()
        self._fail("its limit is over")
        self._on_prefill_expired()
        for _ in range(6):
            self._step_both(TOKENS)

    def _step_both(self, budget: int = 0) -> None:
        self._step_with(self.prefiller, budget)
        self._step_with(self.decoder, budget)

    @staticmethod
    def _step_with(engine: SimulatedEngine, budget: int) -> None:
        engine.chunk_tokens, before = budget, engine.chunk_tokens
        engine.step()
        engine.chunk_tokens = before


@pytest.fixture(scope="module")
def loaded() -> Iterator[release.Release]:
    try:
        with release.loaded(RELEASE) as found:
            yield found
    except vllm_sources.SourcesUnavailableError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def engine(loaded: release.Release) -> EngineMaker:
    return lambda kv_role, **more: SimulatedEngine(loaded, kv_role, **more)


@pytest.mark.parametrize("pair", pairs(UNPLAYED), ids=str)
def test_should_end_the_same_whichever_of_two_events_comes_first(engine: EngineMaker, pair: Pair) -> None:
    for setting in settings():
        ends = []
        for first, second, turned in ((pair.one, pair.other, False), (pair.other, pair.one, True)):
            events = LEGS.story(setting.rest, first, second, seconds_leg_first=setting.other_first != turned)
            played = Story(engine, setting)
            ends.append(played.play(events))
            assert played.prefiller.at_rest(), (setting, events)
            assert played.decoder.at_rest(), (setting, events)
        assert pair.matters or ends[0] == ends[1], setting


def test_should_play_all_pairs_of_the_table() -> None:
    count = len(pairs(UNPLAYED))
    stories = 2 * count * len(list(settings()))
    print(f"{count} pairs of events in both orders, {stories} stories through vLLM's halves")
    events = table()
    assert set(events) == {*PREFILL_LEG, *DECODE_LEG, "REJECTED", "LINK_LOST", *UNPLAYED}
    assert count == 75 - sum(len(events) - 1 - len(events[name][0]) for name in UNPLAYED)
