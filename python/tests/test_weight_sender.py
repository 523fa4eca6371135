"""A sender and several servers, by doubles: each ends by what it reports itself, and none keeps the others waiting."""

from __future__ import annotations

import itertools
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.cli.main import parser
from kv_connector.cli.weights import run
from kv_connector.configuration.weights_options import parse_weights_options
from kv_connector.exceptions import WeightsError
from kv_connector.runtime.facade import SubjectMessenger
from kv_connector.weights import sender as sender_module
from kv_connector.weights.commands import Send
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.routes import FINISH
from kv_connector.weights.sender import WeightSender

LIMIT_SECONDS = 600.0
VERSION = 5
MANIFEST = Manifest.of([("a", "int8", [64])])
URLS = ("http://one", "http://two", "http://three")


class Clock:
    """The sender's. Stands still unless a test has it go on: calls are threads, which may get no core for seconds."""

    def __init__(self) -> None:
        self.goes_on: Callable[[], bool] = lambda: False
        self._now_seconds = 0.0

    def monotonic(self) -> float:
        if self.goes_on():
            self._now_seconds += 0.1
        return self._now_seconds


class MessengerDouble:
    """Events come when a test reports them."""

    opened = SimpleNamespace(control_host="127.0.0.1", control_port=14600)

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Mapping[str, Any]] = []
        self.sent: list[Send] = []
        self.taken: list[Mapping[str, Any]] = []
        self.on_send: Callable[[Send], None] = lambda _send: None

    def report(self, event: str, **fields: object) -> None:
        with self._changed:
            self._events.append({"event": event, **fields})
            self._changed.notify_all()

    def submit(self, commands: list[Send]) -> None:
        self.sent += commands
        self.on_send(commands[0])

    def wait(self, limit_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._events, min(limit_seconds, 0.01))

    def poll_raw(self) -> list[Mapping[str, Any]]:
        with self._changed:
            taken, self._events = self._events, []
        self.taken += taken
        return taken

    def close(self, why: str = "") -> None: ...


class ServerDouble:
    """By default it dials when it is asked to, and reports its load before the call ends."""

    def __init__(self, url: str, messenger: MessengerDouble) -> None:
        self.url = url
        self.ticket = ""
        self.under_way = ""
        self.loads: list[int] = []
        self.versions: list[int] = []
        self._messenger = messenger
        self.announcing: Callable[[], None] = lambda: self.report("attached", host=url)
        self.loading: Callable[[int], None] = self.applied

    def report(self, event: str, **fields: object) -> None:
        self._messenger.report(event, ticket=self.ticket, **fields)

    def applied(self, update_id: int) -> None:
        self.report("applied", updateId=update_id)

    def announce(self, init_info: Mapping[str, object]) -> None:
        self.ticket = str(init_info["ticket"])
        self.announcing()

    def load(self, update_id: int, version: int, under_way: str) -> None:
        self.versions.append(version)
        self.loads.append(update_id)
        self.under_way = under_way
        self.loading(update_id)


class Bed:
    def __init__(self) -> None:
        self.clock = Clock()
        self.messenger = MessengerDouble()
        self.servers = {url: ServerDouble(url, self.messenger) for url in URLS}
        self.one, self.two, self.three = self.servers.values()
        self.lost_at_landing: set[str] = set()
        self.messenger.on_send = self._land

    def _land(self, send: Send) -> None:
        for server in self.servers.values():
            if server.ticket in send.tickets:
                server.report("landed", updateId=send.update_id)
        for server in self.servers.values():
            if server.url in self.lost_at_landing:
                server.report("lost", reason="its session ended")


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Bed:
    made = Bed()
    monkeypatch.setattr(SubjectMessenger, "open_subject", lambda *_given: made.messenger)
    monkeypatch.setattr(sender_module, "Server", lambda url, _limit, _keys: made.servers[url])
    monkeypatch.setattr(sender_module, "time", made.clock)
    monkeypatch.setattr(sender_module, "REPORT_SECONDS", 0.3)
    return made


@pytest.fixture
def sender(bed: Bed) -> Iterator[WeightSender]:
    options = parse_weights_options({"connect_limit_seconds": 1.0}, sends=True, engine_id="w", environment={})
    made = WeightSender(options, MANIFEST, list(bed.servers))
    yield made
    made.close()


@pytest.fixture
def hanging() -> Iterator[Callable[..., None]]:
    """A call that a stopped server never answers."""
    over = threading.Event()

    def call(*_given: object) -> None:
        over.wait(LIMIT_SECONDS)
        raise WeightsError("it did not answer")

    yield call
    over.set()


def test_should_load_on_all_servers_at_a_time(bed: Bed, sender: WeightSender) -> None:
    together = threading.Barrier(len(URLS))

    def load(server: ServerDouble) -> Callable[[int], None]:
        def meet(update_id: int) -> None:
            together.wait(LIMIT_SECONDS)
            server.applied(update_id)

        return meet

    for server in bed.servers.values():
        server.loading = load(server)
    assert sender.connect() == {}
    landed: list[bool] = []
    assert sender.send(VERSION, LIMIT_SECONDS, lambda: landed.append(True), under_way=FINISH) == {}
    assert landed == [True]
    (send,) = bed.messenger.sent
    assert [server.loads for server in bed.servers.values()] == [[send.update_id]] * 3
    assert bed.two.under_way == FINISH


def test_should_load_on_one_server_after_the_other(bed: Bed, sender: WeightSender) -> None:
    order: list[str] = []

    def load(server: ServerDouble) -> Callable[[int], None]:
        def noted(update_id: int) -> None:
            order.append(f"{server.url} begins")
            time.sleep(0.05)
            order.append(f"{server.url} ends")
            server.applied(update_id)

        return noted

    for server in bed.servers.values():
        server.loading = load(server)
    assert sender.connect() == {}
    assert sender.send(VERSION, LIMIT_SECONDS, one_by_one=True) == {}
    assert order == [f"{url} {what}" for url in URLS for what in ("begins", "ends")]


def test_should_connect_to_the_others_while_one_does_not_answer(
    bed: Bed, sender: WeightSender, hanging: Callable[..., None]
) -> None:
    bed.one.announcing = hanging
    bed.clock.goes_on = lambda: len(bed.messenger.taken) == 2
    begun = time.monotonic()
    failed = sender.connect()
    assert time.monotonic() - begun < LIMIT_SECONDS / 2
    assert failed.keys() == {"http://one"}
    assert "did not dial this sender within 1 s" in failed["http://one"]
    assert sender.send(VERSION, LIMIT_SECONDS) == {}
    assert bed.one.loads == []


def test_should_say_why_a_server_cannot_be_asked(bed: Bed, sender: WeightSender) -> None:
    def missing() -> None:
        raise WeightsError("http://one has no route")

    bed.one.announcing = missing
    assert sender.connect() == {"http://one": "http://one has no route"}


@pytest.mark.parametrize("lost_first", [True, False])
def test_should_load_on_the_others_while_one_is_stopped_or_dead(
    bed: Bed, sender: WeightSender, hanging: Callable[..., None], lost_first: bool
) -> None:
    """A stopped server answers no call: its session's end says that it is gone, before the call or within it."""
    assert sender.connect() == {}
    if lost_first:
        bed.lost_at_landing = {"http://one"}
        bed.one.loading = hanging
    else:

        def stopped(_update_id: int) -> None:
            bed.one.report("lost", reason="its session ended")
            hanging()

        bed.one.loading = stopped
    failed = sender.send(VERSION, LIMIT_SECONDS)
    assert failed.keys() == {"http://one"}
    assert "its session ended" in failed["http://one"]
    assert len(bed.two.loads) == len(bed.three.loads) == 1
    bed.lost_at_landing.clear()
    assert sender.send(VERSION + 1, LIMIT_SECONDS) == {}
    assert len(bed.messenger.sent[1].tickets) == 2


@pytest.mark.parametrize("report_first", [True, False])
def test_should_take_the_report_and_the_end_of_the_call_in_either_order(
    bed: Bed, sender: WeightSender, report_first: bool
) -> None:
    asked = threading.Event()

    def later(update_id: int) -> None:
        threading.Timer(0.1, lambda: bed.one.applied(update_id)).start()

    def first(update_id: int) -> None:
        bed.one.applied(update_id)
        asked.wait(0.1)

    bed.one.loading = first if report_first else later
    sender.connect()
    assert sender.send(VERSION, LIMIT_SECONDS) == {}


def test_should_believe_a_refusal_whatever_the_call_says(bed: Bed, sender: WeightSender) -> None:
    bed.one.loading = lambda update_id: bed.one.report("refused", updateId=update_id, reason="a rank has no memory")
    sender.connect()
    assert sender.send(VERSION, LIMIT_SECONDS) == {"http://one": "a rank has no memory"}


def test_should_not_wait_for_ever_for_either(bed: Bed, sender: WeightSender, hanging: Callable[..., None]) -> None:
    bed.one.loading = lambda _update_id: None

    def served(update_id: int) -> None:
        bed.two.applied(update_id)
        hanging()

    def failing(_update_id: int) -> None:
        raise WeightsError("answered 500")

    bed.two.loading, bed.three.loading = served, failing
    sender.connect()
    bed.clock.goes_on = lambda: all(server.loads for server in bed.servers.values())
    failed = sender.send(VERSION, LIMIT_SECONDS)
    assert failed["http://one"].startswith("it did not report the end of the load within 0.3 s")
    assert failed["http://two"].startswith("it serves the new weights, and its HTTP server did not answer")
    assert failed["http://three"] == "answered 500"


def test_should_heed_no_event_about_another_update(bed: Bed, sender: WeightSender) -> None:
    def load(update_id: int) -> None:
        bed.one.report("refused", updateId=update_id - 1, reason="late")
        bed.one.report("attached", host="again")
        bed.one.applied(update_id)

    bed.one.loading = load
    sender.connect()
    assert sender.send(VERSION, LIMIT_SECONDS) == {}


SPELLINGS = ("http://127.0.0.1:1", "http://127.0.0.1:1/", "http://127.0.0.1:1//")


@pytest.fixture
def sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """The command ``weights send`` to servers that are not there: its status, and what it says and complains."""
    monkeypatch.setattr(SubjectMessenger, "open_subject", lambda *_given: MessengerDouble())
    header = json.dumps({"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")

    def send(*urls: str) -> tuple[int, str, str]:
        printed: list[str] = []
        complaints: list[str] = []
        to = [argument for url in urls for argument in ("--to", url)]
        parsed = parser().parse_args(["weights", "send", str(tmp_path), *to])
        return run(parsed, printed.append, complaints.append), "".join(printed), "".join(complaints)

    return send


@pytest.mark.parametrize("url", SPELLINGS)
def test_should_say_of_no_server_that_failed_that_it_serves(
    url: str, sending: Callable[..., tuple[int, str, str]]
) -> None:
    status, printed, complaints = sending(url)
    assert status == 1
    assert "did not answer" in complaints
    assert "version" not in printed


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations_with_replacement(SPELLINGS, 2)))
def test_should_refuse_to_send_to_one_server_twice(
    one: str, other: str, sending: Callable[..., tuple[int, str, str]]
) -> None:
    status, _, complaints = sending(one, other)
    assert status == 1
    assert "expected URLs, each once" in complaints
