"""A trainer's side of weights: holds a copy of the model, and writes it into servers while they answer."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.configuration.options import Options
from kv_connector.exceptions import WeightsError
from kv_connector.runtime.facade import Log, SubjectMessenger, write_to_log
from kv_connector.weights.commands import Send
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.servers import Server

logger = logging.getLogger("kv_connector")

WAIT_SECONDS = 0.2
CALL_SECONDS = 600.0
"""The limit of one call of a server, in which its engine may load all weights."""
REPORT_SECONDS = 30.0
"""Of what a server's messenger says of a load, after the call that loaded has ended."""
_UPDATE_ID_BITS = 52
"""So that JSON of any reader keeps it."""


class WeightSender:
    """Sends one model to the same servers, again and again. For one thread; close it at the end.

    A server that is lost or refuses leaves the update, and the others go on.
    """

    def __init__(self, options: Options, manifest: Manifest, urls: Sequence[str]) -> None:
        """Opens a messenger, which listens. Raises KvConnectorError, or OSError if the model does not fit into memory.

        ``options`` are those of ``parse_weights_options``; ``urls`` those of the servers.
        """
        self._options = options
        self._manifest = manifest
        self._servers = {secrets.token_hex(16): Server(url, CALL_SECONDS) for url in urls}
        self._memory = SharedMemory(manifest.length_bytes)
        self.staging = self._memory.view
        """Where the tensors' bytes belong, each at its place in the manifest; unchanged while :meth:`send` runs."""
        subject = {"kind": "weights", "side": "sender", "manifestDigest": manifest.digest, **self._memory.described()}
        self._messenger = SubjectMessenger.open_subject(options, subject)
        self._attached: set[str] = set()

    def connect(self) -> dict[str, str]:
        """Gives each server this sender's address, and waits for it to dial. Returns reasons by URL, if one fails."""
        opened = self._messenger.opened
        host = f"[{opened.control_host}]" if ":" in opened.control_host else opened.control_host
        failed: dict[str, str] = {}
        for ticket, server in self._servers.items():
            init_info = {"sender": f"{host}:{opened.control_port}", "ticket": ticket, **self._manifest.described()}
            try:
                server.announce(init_info)
            except WeightsError as unfit:
                failed[ticket] = str(unfit)
        failed |= self._await(
            set(self._servers) - failed.keys(), "attached", self._options.connect_limit_seconds, update_id=0
        )
        self._attached = set(self._servers) - failed.keys()
        return {self._servers[ticket].url: reason for ticket, reason in failed.items()}

    def send(self, version: int, limit_seconds: float, landed: Callable[[], object] = lambda: None) -> dict[str, str]:
        """Writes what is staged into all servers and lets them load it. Returns reasons by URL, of those that fail.

        ``limit_seconds`` is for the bytes; ``landed`` is called when they are there, before any server loads them.
        """
        update_id = 1 + secrets.randbits(_UPDATE_ID_BITS)
        tickets = sorted(self._attached)
        self._messenger.submit([Send(update_id, version, tickets)])
        failed = self._await(set(tickets), "landed", limit_seconds, update_id)
        landed()
        for ticket in tickets:
            if ticket not in failed:
                reason = self._load(ticket, update_id, version)
                if reason:
                    failed[ticket] = reason
        return {self._servers[ticket].url: reason for ticket, reason in failed.items()}

    def close(self) -> None:
        """Ends the messenger; servers keep what they serve."""
        self._messenger.close("has sent its weights")

    def _load(self, ticket: str, update_id: int, version: int) -> str:
        server = self._servers[ticket]
        try:
            server.load(update_id)
            reason = self._await({ticket}, "applied", REPORT_SECONDS, update_id).get(ticket, "")
            server.finish(None if reason else version)
        except WeightsError as failure:
            return str(failure)
        return reason

    def _await(self, tickets: set[str], event: str, limit_seconds: float, update_id: int) -> dict[str, str]:
        """Waits until each of these servers has reported the event, or why not. Returns the reasons of the latter."""
        waiting, failed = set(tickets), dict[str, str]()
        deadline = time.monotonic() + limit_seconds
        while waiting and time.monotonic() < deadline:
            self._messenger.wait(WAIT_SECONDS)
            for each in self._messenger.poll_raw():
                ticket = str(each.get("ticket", ""))
                if each["event"] == "log":
                    write_to_log(Log(each["level"], each["message"]), logger)
                elif ticket in waiting and self._is_about(each, update_id):
                    waiting.discard(ticket)
                    if each["event"] != event:
                        failed[ticket] = str(each["reason"])
                if each["event"] == "lost":
                    self._attached.discard(ticket)
        for ticket in waiting:
            failed[ticket] = _LATE[event].format(limit_seconds)
        return failed

    @staticmethod
    def _is_about(event: Mapping[str, Any], update_id: int) -> bool:
        return int(event.get("updateId", update_id)) in (0, update_id)


_LATE = {
    "attached": "it did not dial this sender within {:g} s (connect_limit_seconds): its log says why; beyond its own"
    " host a server dials only with weights_secret, and this sender must listen where the server reaches it",
    "landed": "its bytes had not landed within {:g} s (--limit-seconds)",
    "applied": "it did not report the end of the load within {:g} s: look into its log",
}
