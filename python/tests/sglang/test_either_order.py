"""Every pair of events of the table in docs/protocol.md, in both orders, through both halves of SGLang's backend.

``EitherOrderTest`` in Java makes the table, and plays the pairs with two messengers, and the folder ``vllm`` through
vLLM's halves. Here SGLang's scheduler is imitated on both sides. Each request ends once, no page is freed while it may
be read or written, nothing stays held, and both orders end the same where the table says so.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from either_order import Legs, Pair, pairs, table

if TYPE_CHECKING:
    from two_ranks import DecoderRank, PrefillerRank, Wire

pytestmark = pytest.mark.usefixtures("published")


@pytest.fixture(scope="module")
def published(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """SGLang's settings are known, as they are to a scheduler; whatever ran before."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import publish_arguments

    publish_arguments(tmp_path_factory.mktemp("model"), 1)


UNPLAYED = {
    "PREEMPTED": "a prefiller of SGLang never takes a prompt's pages back",
    "REJECTED": "SGLang's API server rejects nothing that a decoder's rank hears of",
    "WEIGHTS_CHANGED": "SGLang calls another method for it: test_weight_changes.py",
}
NEVER_TOGETHER = {
    frozenset({begins, event}) for begins in ("BEGUN", "ENDED") for event in ("GRANTED", "DECLINED", "UNHEARD")
}
"""SGLang begins no pass before its decoder has given pages."""
PREFILL_LEG = ("ANNOUNCED", "BEGUN", "ENDED", "ABORTED", "PREFILL_EXPIRED")
DECODE_LEG = ("EXPECTED", "GRANTED", "DECLINED", "CANCELLED", "UNHEARD", "FETCH_EXPIRED")
BEFORE = {
    "BEGUN": ["ANNOUNCED", "GRANTED"],
    "ENDED": ["ANNOUNCED", "GRANTED", "BEGUN"],
    "ABORTED": ["ANNOUNCED"],
    "PREFILL_EXPIRED": ["ANNOUNCED"],
    **{event: ["GRANTED"] for event in ("CANCELLED", "UNHEARD", "FETCH_EXPIRED")},
}
AFTER = {"ANNOUNCED": ["BEGUN", "ENDED"], "BEGUN": ["ENDED"], "EXPECTED": ["GRANTED"]}
LEGS = Legs(PREFILL_LEG, DECODE_LEG, BEFORE, AFTER)
RESTS = ("never", "before", "after")


@dataclass(frozen=True)
class Setting:
    rest: str
    """When a leg that the pair does not touch happens."""
    other_first: bool
    rounds_between: int
    """Of both schedulers, behind each event."""
    wire_is_slow: bool
    """Whether the messengers do nothing between the two events, and release what has ended later than they can."""
    moves: bool
    """Whether the prefiller is found at another address when the decoder looks it up again."""
    clients_leave: bool
    """Whether both legs are aborted at last."""


def settings() -> Iterator[Setting]:
    for index, combination in enumerate(itertools.product(RESTS, (False, True), (0, 1), (False, True))):
        yield Setting(*combination, moves=index % 3 == 0, clients_leave=(index // 2 + index) % 2 == 1)


class Story:
    """One room between two ranks, whose messengers do what docs/protocol.md says of each event."""

    def __init__(self, setting: Setting) -> None:
        from two_ranks import DecoderRank, PrefillerRank, Wire

        self.wire: Wire = Wire(is_slow=setting.wire_is_slow)
        self.prefiller: PrefillerRank = PrefillerRank(self.wire)
        self.decoder: DecoderRank = DecoderRank(self.wire, moves=setting.moves)
        self._setting = setting

    def play(self, events: list[str], first: str) -> tuple[int | None, bool]:
        """How the prefill ended, None if there was none, and whether its KV arrived; ``first`` of the pair's two."""
        for event in events:
            getattr(self, f"_on_{event.lower()}")()
            is_slow = event == first and self._setting.wire_is_slow
            if not is_slow:
                self.wire.settle()
            for _ in range(self._setting.rounds_between):
                self._schedule()
                if not is_slow:
                    self.wire.settle()
        if self._setting.clients_leave:
            self._on_aborted()
            self.decoder.abort()
        self._finish()
        return self.prefiller.end, self.wire.arrived

    # ---- the prefill leg

    def _on_announced(self) -> None:
        self.prefiller.add()

    def _on_begun(self) -> None:
        from two_ranks import FIRST_CHUNK_PAGES

        self.prefiller.compute(FIRST_CHUNK_PAGES)

    def _on_ended(self) -> None:
        from two_ranks import PAGES

        self.prefiller.compute(PAGES)

    def _on_aborted(self) -> None:
        self.prefiller.abort()

    def _on_prefill_expired(self) -> None:
        self.prefiller.pass_limit()
        self.prefiller.round()

    # ---- the decode leg

    def _on_expected(self) -> None:
        self.decoder.add()

    def _on_granted(self) -> None:
        self.decoder.fetch()

    def _on_declined(self) -> None:
        self.decoder.add()
        self.decoder.abort()
        assert self.wire.declined, "the prefiller waits for a grant that will not come"

    def _on_cancelled(self) -> None:
        self.decoder.abort()
        assert self.wire.fetch is None or self.wire.abandoned, "the prefiller sends what its decoder has given up"

    def _on_unheard(self) -> None:
        if not self.wire.announced:
            self.wire.fail("the prefiller has not heard of it")

    def _on_fetch_expired(self) -> None:
        self.wire.fail("fetch_limit_seconds are over")

    # ---- neither

    def _on_link_lost(self) -> None:
        self.wire.fail("the control link ended")

    def _schedule(self) -> None:
        self.prefiller.round()
        self.decoder.round()

    def _round(self) -> None:
        self._schedule()
        self.wire.settle()

    def _finish(self) -> None:
        """The engines go on, and what still waits is ended by its limit."""
        self._on_ended()
        for limit in (self._round, self._on_fetch_expired, self._on_prefill_expired, self._on_fetch_expired):
            limit()
            for _ in range(4):
                self._round()

    def left(self) -> dict[str, int]:
        """What is held once all is over; a rank hears of its last release when it next asks."""
        for rank in (self.prefiller, self.decoder):
            rank.endpoint.exchange.drain()
        left = {f"prefiller {kind}": count for kind, count in self.prefiller.endpoint.exchange.held().items()}
        left |= {f"decoder {kind}": count for kind, count in self.decoder.endpoint.exchange.held().items()}
        left["senders"] = int(self.prefiller.sender is not None and self.prefiller.end is None)
        left["receivers"] = int(self.decoder.receiver is not None and self.decoder.end is None)
        return {kind: count for kind, count in left.items() if count}


def once(events: list[str], first: str, second: str) -> list[str]:
    """Each event at its first place, but the pair's where the pair is."""
    at = events.index(second, events.index(first)) if first in events else 0
    kept: list[str] = []
    for index, event in enumerate(events):
        if event not in kept and (event not in (first, second) or index >= at - 1):
            kept.append(event)
    return kept


@pytest.mark.parametrize("pair", pairs(UNPLAYED, NEVER_TOGETHER), ids=str)
def test_should_end_the_same_whichever_of_two_events_comes_first(pair: Pair) -> None:
    for setting in settings():
        ends = []
        for first, second, turned in ((pair.one, pair.other, False), (pair.other, pair.one, True)):
            whole = LEGS.story(setting.rest, first, second, seconds_leg_first=setting.other_first != turned)
            events = once(whole, first, second)
            played = Story(setting)
            ends.append(played.play(events, first))
            assert played.wire.broken == [], (setting, events)
            assert played.left() == {}, (setting, events)
        assert pair.matters or ends[0] == ends[1], (setting, ends)


def test_should_play_all_pairs_of_the_table() -> None:
    count = len(pairs(UNPLAYED, NEVER_TOGETHER))
    stories = 2 * count * len(list(settings()))
    print(f"{count} pairs of events in both orders, {stories} stories through SGLang's halves")
    events = table()
    assert set(events) == {*PREFILL_LEG, *DECODE_LEG, "LINK_LOST", *UNPLAYED}
    assert count == len(pairs(UNPLAYED)) - len(NEVER_TOGETHER)
    assert len(pairs()) == 75
