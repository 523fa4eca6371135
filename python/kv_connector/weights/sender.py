"""A trainer's side of weights: holds a copy of the model, and writes it into servers while they answer."""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kv_connector.configuration.options import Options
from kv_connector.runtime.facade import Log, SubjectMessenger, write_to_log
from kv_connector.weights.calls import ServerCalls
from kv_connector.weights.commands import Send
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.sender_options import keys_of
from kv_connector.weights.servers import Server

logger = logging.getLogger("kv_connector")

WAIT_SECONDS = 0.2
LANDING_LIMIT_SECONDS = 600.0
"""Of the bytes of one update, where a trainer sets none."""
CALL_SECONDS = 600.0
"""The limit of one call of a server, in which its engine may load all weights."""
REPORT_SECONDS = 30.0
"""Of what a server's messenger says of a load, after the call that loaded has ended."""
_UPDATE_ID_BITS = 52
"""So that JSON of any reader keeps it."""


def new_update_id() -> int:
    """An id that no other update has."""
    return 1 + secrets.randbits(_UPDATE_ID_BITS)


class WeightSender:
    """Sends one model to the same servers, again and again. For one thread; close it at the end.

    A server that is lost or refuses leaves the update, and the others go on.
    """

    def __init__(
        self,
        options: Options,
        manifest: Manifest,
        urls: Sequence[str],
        memory: SharedMemory | None = None,
        described: Mapping[str, object] | None = None,
    ) -> None:
        """Opens a messenger, which listens. Raises KvConnectorError, or OSError if the model does not fit into memory.

        ``options`` are those of ``parse_weights_options``; ``urls`` those of the servers; ``memory`` is what holds the
        tensors already, if something does; ``described`` what servers are given of a share, which ``manifest`` is then.
        """
        self._options = options
        self._described = manifest.described() if described is None else described
        self._servers = {secrets.token_hex(16): Server(url, CALL_SECONDS, keys_of(options)) for url in urls}
        self._memory = memory or SharedMemory(manifest.length_bytes)
        self.staging = self._memory.view
        """Where the tensors' bytes belong, each at its place in the manifest; unchanged while :meth:`send` runs."""
        subject = {"kind": "weights", "side": "sender", "manifestDigest": manifest.digest, **self._memory.described()}
        self._messenger = SubjectMessenger.open_subject(options, subject)
        self._attached: set[str] = set()
        self._written: list[str] = []
        """Tickets of the servers that the last update was for."""

    def connect(self) -> dict[str, str]:
        """Gives each server this sender's address, and waits for it to dial. Returns reasons by URL, if one fails."""
        opened = self._messenger.opened
        host = f"[{opened.control_host}]" if ":" in opened.control_host else opened.control_host
        body = {"sender": f"{host}:{opened.control_port}", **self._described}
        calls = {
            ticket: functools.partial(server.announce, {**body, "ticket": ticket})
            for ticket, server in self._servers.items()
        }
        limit_seconds = self._options.connect_limit_seconds
        failed = self._await(_Awaited("attached", set(calls), 0, ServerCalls(calls)), limit_seconds)
        self._attached = set(self._servers) - failed.keys()
        return self._by_url(failed)

    def send(
        self,
        version: int,
        limit_seconds: float,
        landed: Callable[[], object] = lambda: None,
        *,
        under_way: str = "",
        one_by_one: bool = False,
    ) -> dict[str, str]:
        """Writes what is staged into all servers and lets them load it. Returns reasons by URL, of those that fail.

        ``limit_seconds`` is for the bytes; ``landed`` is called when they are there, before any server loads them.
        Requests that a server answers when it loads CONTINUE by the new weights, or FINISH by the old ones first; by
        default vLLM's continue, and SGLang's finish. ``one_by_one``: in the order of ``urls``, each server loads when
        the one before serves. A prefiller and its decoder need that: each would wait for the other to finish.
        """
        update_id = new_update_id()
        failed = self.write(update_id, version, limit_seconds)
        landed()
        return failed | self.load(update_id, version, failed, under_way=under_way, one_by_one=one_by_one)

    def write(self, update_id: int, version: int, limit_seconds: float) -> dict[str, str]:
        """Writes what is staged into all servers, which load nothing yet. Returns reasons by URL, of those that fail.

        An update of several senders has one ``update_id`` of :func:`new_update_id` and one ``version``.
        """
        self._written = [ticket for ticket in self._servers if ticket in self._attached]
        if not self._written:
            return {}
        self._messenger.submit([Send(update_id, version, self._written)])
        return self._by_url(self._await(_Awaited("landed", set(self._written), update_id), limit_seconds))

    def load(
        self,
        update_id: int,
        version: int,
        left: Collection[str],
        *,
        under_way: str = "",
        one_by_one: bool = False,
    ) -> dict[str, str]:
        """Lets the servers of the last :meth:`write` load it, but those whose URLs have ``left``; as :meth:`send`."""
        tickets = [ticket for ticket in self._written if self._servers[ticket].url not in left]
        failed: dict[str, str] = {}
        for group in [[ticket] for ticket in tickets] if one_by_one else [tickets]:
            calls = {
                ticket: functools.partial(self._servers[ticket].load, update_id, version, under_way)
                for ticket in group
                if ticket not in failed and ticket in self._attached
            }
            failed |= {ticket: _LOST for ticket in group if ticket not in failed and ticket not in calls}
            loads = _Awaited("applied", set(calls), update_id, ServerCalls(calls), REPORT_SECONDS)
            failed |= self._await(loads, CALL_SECONDS + REPORT_SECONDS)
        return self._by_url(failed)

    def close(self) -> None:
        """Ends the messenger; servers keep what they serve."""
        self._messenger.close("has sent its weights")

    def _by_url(self, failed: Mapping[str, str]) -> dict[str, str]:
        return {self._servers[ticket].url: reason for ticket, reason in failed.items()}

    def _await(self, awaited: _Awaited, limit_seconds: float) -> dict[str, str]:
        """Waits until each server has ended as it should, or has failed. Returns the reasons of the latter."""
        deadline = time.monotonic() + limit_seconds
        while awaited.waiting and time.monotonic() < deadline:
            self._messenger.wait(WAIT_SECONDS)
            for event in self._messenger.poll_raw():
                if event["event"] == "log":
                    write_to_log(Log(event["level"], event["message"]), logger)
                else:
                    awaited.on_event(event)
                if event["event"] == "lost":
                    self._attached.discard(str(event["ticket"]))
            awaited.on_calls(time.monotonic())
        awaited.give_up(_LATE[awaited.event].format(limit_seconds))
        return awaited.failed


class _Awaited:
    """What is awaited of several servers: an event of each, and the end of a call where one is given."""

    def __init__(
        self,
        event: str,
        tickets: set[str],
        update_id: int,
        calls: ServerCalls | None = None,
        apart_seconds: float = 0.0,
    ) -> None:
        """``calls`` that fail end their servers. A call's own end is awaited, too, for ``apart_seconds`` if not 0."""
        self.event = event
        self.waiting = set(tickets)
        self.failed: dict[str, str] = {}
        self._update_id = update_id
        self._calls = calls
        self._apart_seconds = apart_seconds
        self._reported: set[str] = set()
        """Servers whose event has come, and whose call has not ended."""
        self._since: dict[str, float] = {}
        """When the first of the two was noticed, by ticket."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Events about other updates are late ones, which mean nothing any more."""
        ticket = str(event.get("ticket", ""))
        about = int(event.get("updateId", self._update_id))
        if ticket not in self.waiting or about not in (0, self._update_id):
            return
        if event["event"] in ("refused", "lost"):
            self._end(ticket, str(event["reason"]))
        elif event["event"] == self.event and self._apart_seconds:
            self._reported.add(ticket)
        elif event["event"] == self.event:
            self._end(ticket, "")

    def on_calls(self, now: float) -> None:
        """Ends servers whose call has failed, and those of which both have come, or one of the two for too long."""
        if self._calls is None:
            return
        for ticket in list(self.waiting):
            failure, reported = self._calls.ended(ticket), ticket in self._reported
            if failure is None and not reported:
                continue
            late = now - self._since.setdefault(ticket, now) >= self._apart_seconds
            if failure == "" and reported:
                self._end(ticket, "")
            elif failure and (reported or late):
                self._end(ticket, failure)
            elif late and self._apart_seconds:
                self._end(ticket, _LATE["ended" if reported else self.event].format(self._apart_seconds))

    def give_up(self, reason: str) -> None:
        """All that have not ended are late."""
        for ticket in list(self.waiting):
            self._end(ticket, reason)

    def _end(self, ticket: str, reason: str) -> None:
        self.waiting.discard(ticket)
        if reason:
            self.failed[ticket] = reason


_LOST = "its session ended before it had loaded the weights: look into its log"
_LATE = {
    "attached": "it did not dial this sender within {:g} s (connect_limit_seconds): its log says why; beyond its own"
    " host a server dials only with weights_secret, and this sender must listen where the server reaches it",
    "landed": "its bytes had not landed within {:g} s (--limit-seconds)",
    "applied": "it did not report the end of the load within {:g} s: look into its log",
    "ended": "it serves the new weights, and its HTTP server did not answer within {:g} s: look into its log",
}
