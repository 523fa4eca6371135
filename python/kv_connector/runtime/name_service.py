"""Addresses of a name, within a limit: the operating system's own look-up has none, and may take minutes."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from typing import Any

LOOKUPS_AT_ONCE_MAX = 64
"""Look-ups without an answer, each of which holds a thread until the operating system gives it up."""

THREAD_NAME = "kv-messenger-name"

Addresses = list[tuple[Any, ...]]
"""As ``socket.getaddrinfo`` returns them."""

_places = threading.BoundedSemaphore(LOOKUPS_AT_ONCE_MAX)


def addresses_of(host: str, port: int, limit_seconds: float) -> Addresses:
    """All addresses of a name; raises OSError or ValueError with a reason."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name
        deadline = time.monotonic() + limit_seconds
    places = _places
    if not places.acquire(timeout=limit_seconds):
        raise OSError(
            f"{host} was not looked up within {limit_seconds:g} s, because {LOOKUPS_AT_ONCE_MAX} earlier look-ups have"
            " no answer: check this machine's name servers"
        )
    found: Future[Addresses] = Future()
    try:
        arguments = (host, port, found, places)
        threading.Thread(target=_look_up, args=arguments, name=THREAD_NAME, daemon=True).start()
    except RuntimeError as refused:
        places.release()
        raise OSError(f"{host} was not looked up: {refused}") from refused
    try:
        return found.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError as late:
        raise OSError(
            f"the name service has not found {host} within {limit_seconds:g} s: check this machine's name servers, or"
            " give an address"
        ) from late


def _look_up(host: str, port: int, found: Future[Addresses], places: threading.Semaphore) -> None:
    try:
        found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except BaseException as fault:  # whatever it is, the caller raises it
        found.set_exception(fault)
    finally:
        places.release()
