"""A limit for a whole question, whatever keeps back the answer: a name's look-up, or any part of what is sent."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from kv_connector.runtime import name_service, plain_http
from kv_connector.runtime.name_service import LOOKUPS_AT_ONCE_MAX, THREAD_NAME

LIMIT_SECONDS = 0.2
TEST_LIMIT_SECONDS = 60
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\nX-Name: a value\r\n\r\n" + b"0" * 40
CUTS = [0, 5, 12, ANSWER.index(b"X-Name"), ANSWER.index(b"\r\n\r\n") + 4, len(ANSWER) - 3]
"""Up to where the answer comes at once: nothing, within the status, the headers, the body."""


def within_the_test(question: Callable[[], object]) -> BaseException | None:
    """What it ends with; fails where it does not end at all."""
    ended: Future[object] = Future()

    def run() -> None:
        try:
            ended.set_result(question())
        except BaseException as fault:
            ended.set_exception(fault)

    threading.Thread(target=run, daemon=True).start()
    return ended.exception(TEST_LIMIT_SECONDS)


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def trickling(cut: int, over: threading.Event, pause_seconds: float) -> int:
    """A server that sends this much at once, and the rest byte by byte, each early enough for a limit of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, contextlib.suppress(OSError):
            end, _ = listener.accept()
            with end:
                end.recv(1 << 16)
                end.sendall(ANSWER[:cut])
                while not over.wait(pause_seconds):
                    # A header that never ends, or a body that is as long as it likes.
                    end.sendall(b"0")

    threading.Thread(target=serve, daemon=True).start()
    port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("pause_seconds", [0.05, 3600])
def test_should_end_in_time_whatever_a_server_keeps_back(cut: int, pause_seconds: float, over: threading.Event) -> None:
    port = trickling(cut, over, pause_seconds)
    fault = within_the_test(
        lambda: plain_http.ask("GET", f"http://127.0.0.1:{port}/route", limit_seconds=LIMIT_SECONDS)
    )
    if fault is None:
        assert cut == CUTS[-1], "the last bytes came in time"
        return
    assert isinstance(fault, OSError)
    assert "no whole answer within 0.2 s" in str(fault) or "no HTTP answer" in str(fault)


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch, over: threading.Event) -> Iterator[threading.Event]:
    """No name server answers before the event; addresses need none."""
    own = socket.getaddrinfo
    monkeypatch.setattr(name_service, "_places", threading.BoundedSemaphore(LOOKUPS_AT_ONCE_MAX))

    def look_up(host: str, port: int, flags: int = 0, **kind: Any) -> object:
        if flags & socket.AI_NUMERICHOST:
            return own(host, port, flags=flags, **kind)
        over.wait(TEST_LIMIT_SECONDS)
        return own("127.0.0.1", port, **kind)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield over
    over.set()
    for thread in looking_up():
        thread.join(TEST_LIMIT_SECONDS)
    assert looking_up() == []


def looking_up() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.mark.usefixtures("silent_names")
def test_should_end_in_time_although_no_name_server_answers() -> None:
    fault = within_the_test(lambda: plain_http.ask("GET", "http://silent:1/", limit_seconds=LIMIT_SECONDS))
    assert isinstance(fault, OSError)
    assert "the name service has not found silent within 0.2 s" in str(fault)


def test_should_hold_no_more_threads_than_the_limit_whatever_many_names(silent_names: threading.Event) -> None:
    faults = [
        within_the_test(lambda name=f"name-{n}": plain_http.connect(name, 1, 0.001))  # type: ignore[misc]
        for n in range(LOOKUPS_AT_ONCE_MAX + 8)
    ]
    assert all(isinstance(fault, OSError) for fault in faults)
    assert len(looking_up()) == LOOKUPS_AT_ONCE_MAX
    assert all("64 earlier look-ups have no answer" in str(fault) for fault in faults[LOOKUPS_AT_ONCE_MAX:])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        plain_http.connect("127.0.0.1", port, TEST_LIMIT_SECONDS).close()  # an address needs no name server
        silent_names.set()
        plain_http.connect("name", port, TEST_LIMIT_SECONDS).close()
