"""The memory of weights is given back on every way out: a landing is as large as a model, and senders ask again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.exceptions import MessengerError
from kv_connector.runtime.facade import SubjectMessenger
from kv_connector.weights.commands import Dial
from kv_connector.weights.host import WeightsHost
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.sender import WeightSender

MANIFEST = Manifest.of([("a", "int8", [1 << 20])])
ANOTHER = Manifest.of([("a", "int8", [2 << 20])])
TIMES = 5
IN_USE = "weights_metrics_port is 9000, expected a free port"


class MessengerDouble:
    """Reports the end of each sender that it was given."""

    def __init__(self, subject: Mapping[str, Any]) -> None:
        self.opened = subject
        self.dials: list[Dial] = []
        self._over = threading.Event()

    def submit(self, commands: list[Dial]) -> None:
        self.dials += commands

    def wait(self, _limit_seconds: float) -> None:
        self._over.wait(0.001)

    def poll_raw(self) -> list[Mapping[str, Any]]:
        if self._over.is_set():
            raise MessengerError("it is closed")
        return [{"event": "ended", "reason": "it has left"} for _ in self.dials]

    def close(self, _why: str = "") -> None:
        self._over.set()


class Opener:
    """In place of opening a messenger: opens doubles, but none for a landing of a whole model where it ``refuses``."""

    def __init__(self) -> None:
        self.refuses = False
        self.opened: list[MessengerDouble] = []

    def __call__(self, _options: object, subject: Mapping[str, Any]) -> MessengerDouble:
        if self.refuses and subject["lengthBytes"] >= MANIFEST.length_bytes:
            raise MessengerError(IN_USE)
        self.opened.append(MessengerDouble(subject))
        return self.opened[-1]


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    made = Opener()
    monkeypatch.setattr(SubjectMessenger, "open_subject", made)
    yield made
    for messenger in made.opened:
        messenger.close()
    for thread in threading.enumerate():
        if thread.name == "kv-messenger-weights-events":
            thread.join()


def memory_files() -> int:
    """Descriptors of shared memory, each of which keeps its pages."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found += "memfd:kv-messenger" in str(entry.readlink())
        except OSError:
            continue  # that of the search itself
    return found


def new_host() -> WeightsHost:
    return WeightsHost(parse_weights_options({}, sends=False, engine_id="w", environment={}), logging.getLogger("w"))


def dial(host: WeightsHost, manifest: Manifest, unfit: str = "") -> None:
    host._dial(Dial("127.0.0.1", 14600, "t", unfit), manifest)


class Ways:
    """Each is a way by which memory of weights is taken and not needed any more."""

    def __init__(self, opener: Opener, host: WeightsHost) -> None:
        self._opener = opener
        self._host = host
        self._options = parse_weights_options({}, sends=True, engine_id="w", environment={})

    def refused_for_the_model(self) -> None:
        dial(self._host, MANIFEST, "it is another model")

    def refused_for_other_tensors(self) -> None:
        dial(self._host, ANOTHER)

    def not_opened(self) -> None:
        self._opener.refuses = True
        dial(new_host(), MANIFEST)

    def sent_and_closed(self) -> None:
        self._opener.refuses = False
        WeightSender(self._options, MANIFEST, ["http://one"]).close()

    def not_sent(self) -> None:
        self._opener.refuses = True
        with pytest.raises(MessengerError):
            WeightSender(self._options, MANIFEST, ["http://one"])


@pytest.mark.parametrize(
    "way",
    [Ways.refused_for_the_model, Ways.refused_for_other_tensors, Ways.not_opened, Ways.sent_and_closed, Ways.not_sent],
)
def test_no_way_keeps_memory(opener: Opener, way: Callable[[Ways], None]) -> None:
    before = memory_files()
    host = new_host()
    dial(host, MANIFEST)
    held = memory_files()
    assert held > before, "the landing, for as long as the host is there"
    for _ in range(TIMES):
        way(Ways(opener, host))
    assert memory_files() == held


def test_the_sender_hears_why_no_messenger_of_weights_opens(opener: Opener) -> None:
    opener.refuses = True
    host = new_host()
    dial(host, MANIFEST)
    (refusing,) = opener.opened
    (dialled,) = refusing.dials
    assert IN_USE in dialled.refusal
    assert IN_USE in str(host.status()["refused"])
    opener.refuses = False
    dial(host, MANIFEST)
    assert host.landing is not None, "what had failed can be tried again"


@pytest.mark.parametrize("length_bytes", [-1, 0, 1 << 63, 1 << 64])
def test_memory_that_cannot_be_keeps_no_descriptor(length_bytes: int) -> None:
    before = memory_files()
    with pytest.raises((OSError, OverflowError)):
        SharedMemory(length_bytes)
    assert memory_files() == before


def test_its_bytes_outlive_it_as_long_as_they_are_looked_at() -> None:
    view = SharedMemory(4096).view
    view[7] = 9
    assert view[7] == 9
