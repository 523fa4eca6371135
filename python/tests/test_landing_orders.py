"""A server with a landing for each of two trainer ranks, in every order of what can come to them.

The landings are models of the Java ones; what asks them, and has the engine load, is the production code.
"""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.weights.commands import Applied, Apply
from kv_connector.weights.decision import Decision
from kv_connector.weights.host import WeightsHost
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share
from kv_connector.weights.shares_host import SharesHost

WHOLE = Manifest.of([("w", "int8", [5, 3])])
RANKS = range(2)


@dataclass(frozen=True)
class Sent:
    """One rank's part of an update: two trainers, or one that was started again, may give it the same version."""

    id: int
    version: int


FIRST, AGAIN, NEXT = Sent(1, 10), Sent(2, 10), Sent(3, 11)
TORN = (Sent(4, 12), Sent(4, 13))
"""One update by whose id the ranks send two versions, as no sender of ours does."""
LAST = Sent(9, 90)


class Landing:
    """As `WeightReceiver` and `Landing` have it: docs/weights.md, states of a landing."""

    def __init__(self, host: WeightsHost) -> None:
        self._host = host
        self.state = "EMPTY"
        self.sent: Sent | None = None
        self.served = 0

    def announce(self, sent: Sent) -> None:
        if sent.version > self.served and self.state in ("EMPTY", "LANDED", "HELD"):
            self.state, self.sent = "GROUND", sent

    def land(self) -> None:
        if self.state == "GROUND" and self.sent is not None:
            self.state = "LANDED"
            self._host._on({"event": "landed", "updateId": self.sent.id, "version": self.sent.version, "digest": "ab"})

    def lose(self) -> None:
        if self.state == "GROUND":
            self.state, self.sent = "EMPTY", None

    def submit(self, commands: Sequence[object]) -> None:
        for command in commands:
            if isinstance(command, Apply):
                self._host._on({"event": "decided", "reason": self._decide(command.update_id)})
            elif isinstance(command, Applied):
                self._applied(command)

    def _decide(self, update_id: int) -> str:
        if self.state != "LANDED" or self.sent is None:
            return f"it is {self.state}"
        if self.sent.id != update_id:
            return "another update is in the landing"
        self.state = "APPLYING"
        return ""

    def _applied(self, command: Applied) -> None:
        if self.state == "APPLYING" and self.sent is not None and self.sent.id == command.update_id:
            self.state = "EMPTY" if command.failure else "HELD"
            self.served = self.served if command.failure else self.sent.version


Event = tuple[Any, ...]
EVENTS: tuple[Event, ...] = (
    *(("announce", rank, sent) for rank in RANKS for sent in (FIRST, AGAIN, NEXT)),
    *(("announce", rank, TORN[rank]) for rank in RANKS),
    *((what, rank) for rank in RANKS for what in ("land", "lose")),
    *(("load", update_id) for update_id in (1, 2, 3, 4)),
)


class World:
    """A server's landings, and what its engine has loaded."""

    def __init__(self, kind: type[SharesHost]) -> None:
        options = parse_weights_options({}, sends=False, engine_id="w", environment={})
        self.host = kind(options, logging.getLogger("w"))
        self.host._hosts = [WeightsHost(options, logging.getLogger("w")) for _ in RANKS]
        self.host._share = Share.of(WHOLE, (True,), 0, len(RANKS))
        self.landings = [Landing(each) for each in self.host._hosts]
        for rank, (host, landing) in enumerate(zip(self.host._hosts, self.landings, strict=True)):
            host._messenger = landing  # type: ignore[assignment]
            host.landing = SimpleNamespace(memfd=rank)  # type: ignore[assignment]
        self.served = Sent(0, 0)
        self.loads = 0

    def happen(self, event: Event, meanwhile: Callable[[], None] = lambda: None) -> None:
        """``meanwhile`` comes between the decision and its end."""
        what, *given = event
        if what == "load":
            self._load(given[0], meanwhile)
        else:
            getattr(self.landings[given[0]], what)(*given[1:])

    def happen_all(self, events: Sequence[Event]) -> None:
        for event in events:
            self.happen(event)

    def _load(self, update_id: int, meanwhile: Callable[[], None]) -> None:
        before = [landing.sent if landing.state == "LANDED" else None for landing in self.landings]
        decision = self.host.decide(update_id, WHOLE)
        meanwhile()
        assert all(landing.state == "APPLYING" for landing in self.landings) or decision.reason
        if not decision.reason:
            self._check(decision, update_id, before)
        self.host.applied(update_id, decision.reason)
        assert "APPLYING" not in [landing.state for landing in self.landings], "a landing is the engine's for ever"

    def _check(self, decision: Decision, update_id: int, before: Sequence[Sent | None]) -> None:
        (sent,) = set(before)
        assert sent is not None, "a landing is loaded that has not landed"
        assert (sent.id, sent.version) == (update_id, decision.version)
        assert sent.version > self.served.version, "what is served, or what is older, is loaded again"
        assert decision.memfds == tuple(RANKS)
        self.served = sent
        self.loads += 1

    def end(self) -> None:
        """Whatever came before, the next update is loaded."""
        for rank in RANKS:
            self.landings[rank].lose()
            self.happen(("announce", rank, LAST))
            self.happen(("land", rank))
        self.happen(("load", LAST.id))
        assert self.served == LAST
        assert [landing.served for landing in self.landings] == [LAST.version] * len(RANKS)


PREPARED: tuple[tuple[Event, ...], ...] = (
    (),
    (("announce", 0, FIRST), ("land", 0)),
    (("announce", 0, FIRST), ("announce", 1, NEXT), ("land", 1)),
    tuple((what, rank, *sent) for rank in RANKS for what, *sent in (("announce", FIRST), ("land",))),
    (*((what, rank, *sent) for rank in RANKS for what, *sent in (("announce", FIRST), ("land",))), ("load", 1)),
)
"""What has come before, so that few events make a load."""


def every_order(kind: type[SharesHost], length: int) -> int:
    """The loads of all of them."""
    loads = 0
    for before, events in itertools.product(PREPARED, itertools.product(EVENTS, repeat=length)):
        world = World(kind)
        for event in (*before, *events):
            world.happen(event)
        loads += world.loads
        world.end()
    return loads


def turn(draw: random.Random, sent: Sent) -> Iterator[Event]:
    """One update of both ranks, in some order, in which some events do not come and others come between."""
    parts = [[("announce", rank, sent), ("land", rank)] for rank in RANKS]
    for rank in draw.sample((0, 0, 1, 1), 4):
        if draw.random() < 0.3:
            yield draw.choice(EVENTS)
        event = parts[rank].pop(0)
        if draw.random() < 0.9:
            yield event


def drawn(kind: type[SharesHost], seeds: Iterator[int]) -> int:
    """Long orders, with events while an engine loads. The loads of all."""
    loads = 0
    for seed in seeds:
        draw = random.Random(seed)
        world = World(kind)
        version = 10
        for update_id in range(10, 20):
            version += draw.randint(0, 2)
            world.happen_all(list(turn(draw, Sent(update_id, version))))
            between = [event for event in draw.choices(EVENTS, k=draw.randint(0, 3)) if event[0] != "load"]
            world.happen(("load", update_id), functools.partial(world.happen_all, between))
        loads += world.loads
        world.end()
    return loads


def test_all_ranks_parts_of_one_update_are_loaded_or_none() -> None:
    assert every_order(SharesHost, 3) > 500
    assert drawn(SharesHost, iter(range(500))) > 500


class FirstOnly(SharesHost):
    """Asks one landing for all."""

    def decide(self, update_id: int, *given: Any, **more: Any) -> Decision:
        hosts, self._hosts = self._hosts, self._hosts[:1] * len(RANKS)
        try:
            return super().decide(update_id, *given, **more)
        finally:
            self._hosts = hosts


class AnyVersion(SharesHost):
    """Takes what has landed for one version."""

    def decide(self, update_id: int, *given: Any, **more: Any) -> Decision:
        whole = [host.version_of for host in self._hosts]
        for host in self._hosts:
            host.version_of = lambda _update_id: 12  # type: ignore[method-assign]
        try:
            return super().decide(update_id, *given, **more)
        finally:
            for host, version_of in zip(self._hosts, whole, strict=True):
                host.version_of = version_of  # type: ignore[method-assign]


class FirstEndOnly(SharesHost):
    """Has one landing hear what came of the load."""

    def applied(self, update_id: int, failure: str = "") -> None:
        self._hosts[0].applied(update_id, failure)


class OneReasonIsEnough(SharesHost):
    """Loads if any landing may be loaded."""

    def decide(self, update_id: int, *given: Any, **more: Any) -> Decision:
        decided = [host.decide(update_id) for host in self._hosts]
        if all(decided):
            return super().decide(update_id, *given, **more)
        return Decision(
            "", max(host.version_of(update_id) for host in self._hosts), 1, tuple(RANKS), self._share, WHOLE
        )


class ForgottenRefusal(SharesHost):
    """Keeps for the engine what might have been loaded, where another landing refuses."""

    def applied(self, update_id: int, failure: str = "") -> None:
        if not failure:
            super().applied(update_id, failure)


@pytest.mark.parametrize("kind", [FirstOnly, AnyVersion, FirstEndOnly, OneReasonIsEnough, ForgottenRefusal])
def test_what_is_wrong_with_the_rule_is_found(kind: type[SharesHost]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        drawn(kind, iter(range(500)))
