"""Moves pages between two hosts with two engines' options but without engines, to test the connection and its speed.

One side answers like a prefiller: it keeps pages ready under the names of :func:`offers`. The other side asks like a
decoder: it fetches them, compares every byte, and prints how long that took.
"""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from kv_connector.cli.host_pages import HostPages
from kv_connector.configuration.options import Options
from kv_connector.exceptions import KvConnectorError, OptionError
from kv_connector.runtime.commands import (
    Announce,
    ChunkPages,
    Computed,
    Fetch,
    FetchPages,
    PrefillEnded,
    PrefillerAddress,
)
from kv_connector.runtime.facade import Arrived, Event, Failed, Granted, Log, Messenger, Released, Stopped, Timeline

MODEL = "ping"
PAGE_BYTES = 64 << 10
PAGE_COUNT = 1024
PAGE_TOKENS = 16
ONE_PAGE_OFFERS = 32
"""The number of names with one page: while one is being made ready again, the others can be fetched."""
ALL_PAGES_OFFERS = 2
ONE_PAGE_ROUNDS = 200
ALL_PAGES_ROUNDS = 10
FETCH_LIMIT_SECONDS = 30.0
"""Besides the limit of the connection, so that a server that is no messenger is said to be none."""
WAIT_SECONDS = 0.2
"""The limit of one wait for events; a keyboard interrupt takes effect between two waits."""
NO_PORT = -1

Say = Callable[[str], object]


def offers() -> dict[str, int]:
    """The names of transfers, and the number of pages of each."""
    one = {f"{MODEL}-page-{number}": 1 for number in range(ONE_PAGE_OFFERS)}
    return one | {f"{MODEL}-pages-{number}": PAGE_COUNT for number in range(ALL_PAGES_OFFERS)}


def address(text: str) -> tuple[str, int]:
    """Parses HOST:PORT, with an IPv6 address in brackets; raises OptionError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise OptionError(f"the prefiller is {text!r}, expected HOST:PORT as the side that answers prints it")
    return host.removeprefix("[").removesuffix("]"), int(port)


def fitting(options: Options, *, answers: bool) -> Options:
    """Adapts the options to one side of the ping; raises OptionError if they are for the other one."""
    if options.role == ("decoder" if answers else "prefiller"):
        raise OptionError(
            f"these are a {options.role}'s options, and a {options.role} {'asks' if answers else 'answers'}: run"
            f" kv-messenger ping {'HOST:PORT' if answers else '--answer'} with them, and this command on the other host"
        )
    fitted = dataclasses.replace(options, engine_id=f"{MODEL}-{os.getpid()}", metrics_port=NO_PORT)
    return fitted if answers else dataclasses.replace(fitted, role="decoder", listen_port=0)


def fetch_limit_seconds(options: Options) -> float:
    """The limit of one fetch, the first of which dials."""
    return options.connect_limit_seconds + FETCH_LIMIT_SECONDS


def pages_to_send() -> HostPages:
    """Pages with pseudo-random bytes, which are equal on both sides and differ from page to page."""
    pages = HostPages(MODEL, PAGE_BYTES, PAGE_COUNT)
    pages.view[:] = random.Random(MODEL).randbytes(len(pages.view))
    return pages


def answer(options: Options, say: Say) -> int:
    """Keeps pages ready for all peers until it is interrupted; returns the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell script starts `ping --answer &` with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    pages = pages_to_send()
    try:
        messenger = Messenger.open(options, pages.geometry(PAGE_TOKENS))
    except KvConnectorError as fault:
        say(f"{fault}\n")
        return 1
    try:
        at = f"{messenger.opened.control_host}:{messenger.opened.control_port}"
        say(f"answers at {at} until it is interrupted; on the other host: kv-messenger ping {at}\n")
        Answering(messenger, say).run()
    except KeyboardInterrupt:
        pass
    except KvConnectorError as fault:
        say(f"{fault}\n")
        return 1
    finally:
        messenger.close()
    return 0


class Answering:
    """The prefiller's side: keeps a computed request announced for each name, and a new one after it was sent."""

    def __init__(self, messenger: Messenger, say: Say) -> None:
        self._messenger = messenger
        self._say = say
        self._begun = 0
        self._names: dict[str, str] = {}
        """The name of each request."""
        self._ended: set[str] = set()
        self._printed = ""

    def run(self) -> NoReturn:
        """Runs until an exception ends it."""
        for name in offers():
            self._begin(name)
        while True:
            self._messenger.wait(WAIT_SECONDS)
            for event in self._messenger.poll():
                self._take(event)

    def _begin(self, name: str) -> None:
        self._begun += 1
        request = f"{name}-{self._begun}"
        self._names[request] = name
        tokens = offers()[name] * PAGE_TOKENS
        pages = ChunkPages(0, list(range(offers()[name])))
        self._messenger.submit([Announce(request, name, ""), Computed(request, name, "", tokens, tokens, [pages])])

    def _take(self, event: Event) -> None:
        match event:
            case Granted() | Stopped() if event.request not in self._ended:
                self._ended.add(event.request)
                self._messenger.submit([PrefillEnded(event.request, "finished")])
            case Released(request):
                self._ended.discard(request)
                self._begin(self._names.pop(request))
            case Timeline(_, times):
                self._print(times)
            case Log(level, message) if level != "info":
                # A peer's disconnection is a warning for an engine, but expected here.
                self._say(f"error: {message}\n" if level == "error" else f"{message}\n")

    def _print(self, times: Mapping[str, Any]) -> None:
        """Prints the peer of a transfer, unless it is that of the previous one."""
        line = f"sends to {times['peer']} over {times['transport']}\n"
        if line != self._printed:
            self._printed = line
            self._say(line)


def ask(options: Options, host: str, port: int, say: Say) -> int:
    """Fetches from the side that answers and prints how long it took; returns the exit code."""
    try:
        pages = HostPages(MODEL, PAGE_BYTES, PAGE_COUNT)
        messenger = Messenger.open(options, pages.geometry(PAGE_TOKENS))
        try:
            for line in Asking(messenger, pages, PrefillerAddress(host, port), fetch_limit_seconds(options)).lines():
                say(f"{line}\n")
        finally:
            messenger.close()
    except KvConnectorError as fault:
        say(f"{fault}\n")
        return 1
    return 0


class Asking:
    """The decoder's side. Raises PingError with the messenger's error message."""

    def __init__(
        self, messenger: Messenger, pages: HostPages, prefiller: PrefillerAddress, limit_seconds: float
    ) -> None:
        self._messenger = messenger
        self._pages = pages
        self._prefiller = prefiller
        self._limit_seconds = limit_seconds
        self._expected = pages_to_send()
        self._asked = 0

    def lines(self) -> Iterator[str]:
        """Measures, and yields a line for each result."""
        first = self._fetch(f"{MODEL}-page-0")
        yield f"first page after {1000 * first:.2f} ms: connection, handshake, data path and transfer"
        one = [self._fetch(f"{MODEL}-page-{(1 + number) % ONE_PAGE_OFFERS}") for number in range(ONE_PAGE_ROUNDS)]
        yield (
            f"one page of {PAGE_BYTES >> 10} KiB: {1000 * statistics.median(one):.2f} ms median,"
            f" {1000 * max(one):.2f} ms worst of {len(one)}, from fetch to the poll that has it"
        )
        every = [self._fetch(f"{MODEL}-pages-{number % ALL_PAGES_OFFERS}") for number in range(ALL_PAGES_ROUNDS)]
        speeds = [PAGE_BYTES * PAGE_COUNT / seconds / 1e9 for seconds in every]
        yield (
            f"{PAGE_COUNT} pages, {PAGE_BYTES * PAGE_COUNT >> 20} MiB: {statistics.median(speeds):.2f} GB/s median,"
            f" {min(speeds):.2f} GB/s worst of {len(speeds)}"
        )
        yield "every byte was compared"

    def _fetch(self, name: str) -> float:
        """Fetches the pages of a name; returns the seconds until their arrival is reported."""
        page_count = offers()[name]
        length = page_count * PAGE_BYTES
        self._pages.view[:length] = bytes(length)
        self._asked += 1
        request = f"ask-{self._asked}"
        began = time.perf_counter()
        self._messenger.submit(
            [
                Fetch(
                    request=request,
                    transfer=name,
                    prompt_digest="",
                    prefillers=[self._prefiller],
                    prompt_tokens=page_count * PAGE_TOKENS,
                    first_token=0,
                    groups=[FetchPages(list(range(page_count)))],
                    limit_millis=round(1000 * self._limit_seconds),
                )
            ]
        )
        self._await(request)
        seconds = time.perf_counter() - began
        if self._pages.view[:length] != self._expected.view[:length]:
            raise PingError(f"the pages of {name} arrived, and not with the bytes that were sent: report it")
        return seconds

    def _await(self, request: str) -> None:
        while True:
            self._messenger.wait(WAIT_SECONDS)
            for event in self._messenger.poll():
                match event:
                    case Arrived(name) if name == request:
                        return
                    case Failed(name, reason) if name == request:
                        raise PingError(reason)


class PingError(KvConnectorError):
    """The pages did not arrive, or not with the bytes that were sent."""
