"""Trainers with other tensors that come while the landings of another one are still being made, in every order."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.weights import host as host_module
from kv_connector.weights.commands import Dial
from kv_connector.weights.host import WeightsHost
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share
from kv_connector.weights.shares_host import SharesHost

WIDE = Manifest.of([("a", "float32", [64, 2]), ("b", "float32", [64, 2])])
NARROW = Manifest.of([("a", "float16", [64, 2]), ("b", "float16", [64, 2])])
"""The same tensors by another trainer, in a landing half as long."""
SENDERS = {
    "wide": Share.of(WIDE, (False, False), 0, 1),
    "narrow": Share.of(NARROW, (False, False), 0, 1),
    "rank 0": Share.of(WIDE, (True, True), 0, 2),
    "rank 1": Share.of(WIDE, (True, True), 1, 2),
}
OPENINGS = ("oldest", "newest", "full")
"""Which thread of those that make landings goes on; with "full" the oldest, which finds no memory."""
OPTIONS = parse_weights_options({}, sends=False, engine_id="w", environment={})


class World:
    """One server. Threads that make landings stand until an event has one of them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._threads: list[Callable[[], None]] = []
        self._is_full = False
        self.accepted: list[tuple[str, WeightsHost]] = []
        self.refused: list[str] = []
        monkeypatch.setattr(host_module, "SharedMemory", self._memory)
        monkeypatch.setattr(WeightsHost, "_opened", lambda host, *_given: self._messenger(host))
        monkeypatch.setattr(WeightsHost, "_refuse", lambda _host, dial, _manifest: self.refused.append(dial.ticket))
        threads = SimpleNamespace(Thread=self._thread, Lock=threading.Lock, Condition=threading.Condition)
        monkeypatch.setattr(host_module, "threading", threads)
        self.host = SharesHost(OPTIONS, logging.getLogger("w"))

    def _thread(self, target: Callable[..., None], args: tuple[Any, ...], name: str, **_more: object) -> Any:
        makes_landings = name == "kv-messenger-weights"
        return SimpleNamespace(start=lambda: makes_landings and self._threads.append(lambda: target(*args)))

    def _memory(self, length_bytes: int) -> Any:
        if self._is_full:
            raise OSError("no memory")
        return SimpleNamespace(length_bytes=length_bytes, memfd=0)

    def _messenger(self, host: WeightsHost) -> Any:
        def submit(commands: Sequence[object]) -> None:
            for command in commands:
                if isinstance(command, Dial):
                    self.accepted.append((command.ticket, host))
                else:
                    host._on({"event": "decided", "reason": ""})

        return SimpleNamespace(submit=submit)

    def happen(self, event: str) -> None:
        if event in SENDERS:
            self.host.dial("127.0.0.1:14600", event, SENDERS[event], "")
        elif self._threads:
            self._is_full = event == "full"
            self._threads.pop(-1 if event == "newest" else 0)()

    def end(self) -> None:
        while self._threads:
            self.happen("oldest")

    def accepts(self, sender: str) -> bool:
        self.accepted.clear()
        self.happen(sender)
        self.end()
        return bool(self.accepted)

    def check(self) -> None:
        """What lands is what would be loaded, and the trainer whose landings there are is no other one's prisoner."""
        for ticket, host in self.accepted:
            assert host.manifest == SENDERS[ticket].own, f"{ticket} writes into a landing of other tensors"
        landings = [host for host in self.host._hosts if host.landing is not None]
        if not landings:
            assert self.accepts("narrow"), "no landing, and none can be made"
            return
        able = [
            trainer
            for trainer in (("wide",), ("narrow",), ("rank 0", "rank 1"))
            if all(self.accepts(sender) for sender in trainer)
        ]
        assert len(able) == 1, f"{able or 'no trainer'} can send"
        for host in self.host._hosts:
            host._on({"event": "landed", "updateId": 7, "version": 70, "digest": "ab"})
        decision = self.host.decide(7, None)
        assert not decision.reason
        assert decision.share is not None
        assert [each.own for each in decision.share.of_all_ranks()] == [host.manifest for host in self.host._hosts]
        assert decision.manifest == SENDERS[able[0][0]].whole


@pytest.mark.parametrize("first", [*SENDERS])
def test_should_land_what_is_loaded_whoever_comes_while_landings_are_made(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for others in itertools.product([*SENDERS, *OPENINGS], repeat=4):
        with monkeypatch.context() as patched:
            world = World(patched)
            events = [first, *others]
            try:
                for event in events:
                    world.happen(event)
                world.end()
                world.check()
            except AssertionError as wrong:
                raise AssertionError(f"{events}: {wrong}") from wrong
