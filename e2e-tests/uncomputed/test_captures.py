"""A capture is open while a peer connects, copies pages and goes or is killed; none is lost."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from uncomputed.capturing import Engine, Guest, Side, serve
from uncomputed.pair import environment, stand_ins


@dataclass(frozen=True)
class Kind:
    """Of a guest."""

    transport: str
    role: str


KINDS = [Kind(*both) for both in itertools.product(("cuda", "tcp"), ("decoder", "prefiller"))]
"""In turns."""
KILLED_EVERY = 5
"""Not a divisor of the number of kinds, so that guests of each are killed."""
LIMIT_SECONDS = 3600.0
POLL_SECONDS = 0.05


class Remote:
    """A side in a process of its own."""

    def __init__(self, make: Callable[[], Side], variables: dict[str, str]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._commands, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(make, theirs), daemon=True)
        with mock.patch.dict(os.environ, variables):
            self._process.start()
        theirs.close()
        assert self._answer() == "ready"

    def ask(self, name: str, *arguments: Any) -> Any:
        self._commands.send((name, *arguments))
        return self._answer()

    def _answer(self) -> Any:
        assert self._commands.poll(LIMIT_SECONDS), "a side does not answer"
        return self._commands.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def end(self) -> None:
        if self._process.is_alive():
            self._commands.send(None)
            self._process.join(LIMIT_SECONDS)
            assert self._process.exitcode == 0


@contextmanager
def engine(**variables: str) -> Iterator[Remote]:
    """Ends by itself where the test does not fail."""
    made = Remote(Engine, environment(stand_ins()) | variables)
    try:
        yield made
        made.end()
    finally:
        made.kill()


class Guests:
    """One process after the other, each for as many guests as come before one is killed."""

    def __init__(self) -> None:
        self._remote: Remote | None = None

    def next(self) -> Remote:
        if self._remote is None:
            self._remote = Remote(Guest, environment(stand_ins()))
        return self._remote

    def kill(self) -> None:
        if self._remote is not None:
            self._remote.kill()
        self._remote = None


@pytest.fixture
def guests() -> Iterator[Guests]:
    made = Guests()
    yield made
    made.kill()


def visit(host: Remote, address: Any, guests: Guests, number: int) -> None:
    """A guest comes, moves all pages, and goes within one capture, which is not lost."""
    host.ask("begin_capture")
    kind, guest = KINDS[number % len(KINDS)], guests.next()
    name = begun(host, address, guest, kind, number)
    sender, receiver = (guest, host) if kind.role == "prefiller" else (host, guest)
    assert receiver.ask("ended", name) == "Arrived"
    assert sender.ask("ended", name) == "Released"
    assert receiver.ask("holds", number), (kind, number)
    if number % KILLED_EVERY == KILLED_EVERY - 1:
        guests.kill()
    else:
        guest.ask("close")
    host.ask("await_solitude")
    assert host.ask("end_capture") == "", (kind, number)


def begun(host: Remote, address: Any, guest: Remote, kind: Kind, number: int) -> str:
    """The name of a transfer between both; a capture is open since before the guest's messenger is."""
    sender, receiver = (guest, host) if kind.role == "prefiller" else (host, guest)
    sender.ask("fill", number)
    receiver.ask("fill", number + 1)
    own = guest.ask("open", kind.role, [kind.transport])
    name = f"transfer-{number}"
    sender.ask("send", name)
    receiver.ask("fetch", name, own if kind.role == "prefiller" else address)
    return name


def test_no_capture_is_lost(guests: Guests, request: pytest.FixtureRequest) -> None:
    with engine() as host:
        address = host.ask("open", "both", ["cuda", "tcp"])
        for number in range(request.config.getoption("--guests")):
            visit(host, address, guests, number)
        host.ask("close")


def test_threads_in_the_default_mode_lose_captures(guests: Guests) -> None:
    """As if the messenger's threads had not left it: what the test above is for is found."""
    with engine(STAND_IN_DEFAULT_MODE="1") as host:
        address = host.ask("open", "both", ["cuda", "tcp"])
        host.ask("begin_capture")
        begun(host, address, guests.next(), KINDS[0], 0)
        limit = time.monotonic() + LIMIT_SECONDS
        while not host.ask("is_capture_lost"):
            assert time.monotonic() < limit, "no call of the messenger's has ended the capture"
            time.sleep(POLL_SECONDS)
        assert "captur" in host.ask("end_capture")
        guests.kill()
        host.kill()
