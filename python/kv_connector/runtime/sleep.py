"""What stands in for a messenger while its engine sleeps: for peers at its ports, and for the engine itself.

Used by the thread that opens and closes the engine's messenger.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from kv_connector.configuration.options import Options
from kv_connector.exceptions import KvConnectorError
from kv_connector.runtime.commands import Announce, Command, Fetch, PrefillEnded
from kv_connector.runtime.facade import Event, Failed, LeakCheck, Opened, Released, Stats, Stopped, SubjectMessenger

WHY_CLOSED = "goes to sleep, and gives its KV memory back"
"""For peers that are connected when it begins."""
WHY_FAILED = (
    "this engine sleeps, and its KV memory was given back: wake it up (/resume_memory_occupation), then send the"
    " request again"
)
_SUBJECT = {"kind": "sleeping_kv_cache"}


Port = TypeVar("Port")


class Closable(Protocol):
    """An open messenger, of which nothing but its end matters."""

    def close(self) -> None:
        """Closes it."""


OpenSubject = Callable[[Options, Mapping[str, object]], Closable]


class StandIn:
    """Keeps the ports of a closed messenger until the engine wakes up."""

    open_subject: OpenSubject = staticmethod(SubjectMessenger.open_subject)
    """Opens a messenger without memory."""

    def __init__(self, options: Options, opened: Opened, logger: logging.Logger) -> None:
        """``options`` are those of the closed messenger, whose addresses were ``opened``.

        The engine sleeps in any case: peers of one that cannot keep its ports find none there.
        """
        self.options = at_ports_of(opened, options)
        """Those of the next messenger, which peers find at the same ports."""
        self._messenger: Closable | None = None
        try:
            self._messenger = self.open_subject(self.options, _SUBJECT)
        except KvConnectorError as fault:
            logger.warning("peers cannot connect while this engine sleeps: %s", fault)

    def close(self) -> None:
        """Leaves the ports."""
        if self._messenger is not None:
            self._messenger.close()
            self._messenger = None


def at_ports_of(opened: Opened, options: Options) -> Options:
    """The options with the ports that the system had chosen."""
    changes: dict[str, Any] = {}
    if not options.listen_port and not options.advertise_port and opened.control_port > 0:
        changes["listen_port"] = opened.control_port
    if not options.metrics_port and opened.metrics_port > 0:
        changes["metrics_port"] = opened.metrics_port
    return dataclasses.replace(options, **changes)


def reopened(
    options: Options | None, configured: Options, open_messenger: Callable[[Options], Port], logger: logging.Logger
) -> Port:
    """Opens the messenger of an engine that wakes up, with the ``options`` of its stand-in.

    It gets other ports if these cannot be had any more and the user ``configured`` none; without ``options`` there was
    no sleep.
    """
    if options is not None and options != configured:
        try:
            return open_messenger(options)
        except KvConnectorError as fault:
            logger.warning("the messenger gets other ports than before: %s", fault)
    return open_messenger(configured)


class SleepingMessenger:
    """Ends each request of an engine that goes on scheduling while it sleeps, with one sentence; moves nothing."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        """The addresses of the closed messenger."""
        self._events: list[Event] = []

    def submit(self, commands: Sequence[Command]) -> None:
        """Answers at once; what needs no answer is dropped."""
        for command in commands:
            match command:
                case Announce(request=request):
                    self._events += [Stopped(request, WHY_FAILED), Released(request)]
                case PrefillEnded(request=request):
                    self._events.append(Released(request))
                case Fetch(request=request):
                    self._events.append(Failed(request, WHY_FAILED))

    def poll(self) -> list[Event]:
        """Takes the events since the last poll."""
        events, self._events = self._events, []
        return events

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there are events to poll, or until the limit."""
        if not self._events:
            time.sleep(limit_seconds)

    def stats(self) -> Stats:
        """Nothing is counted."""
        return Stats({}, {})

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:  # noqa: ARG002
        """Nothing reads any page."""
        return list(requests)

    def leak_check(self) -> LeakCheck:
        """Nothing is held."""
        return LeakCheck(clean=True, held={})

    def close(self, why: str = "") -> None:
        """Does nothing: what it stands in for is closed."""
