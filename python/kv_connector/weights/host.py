"""A serving engine's side of weights: one landing, one messenger, and a thread that hears what it reports.

Nothing here blocks the engine but :meth:`WeightsHost.decide`, and nothing raises into it.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from kv_connector.configuration.host_addresses import says_loopback
from kv_connector.configuration.messenger_addresses import read_list
from kv_connector.configuration.options import Options
from kv_connector.exceptions import KvConnectorError, MessengerError
from kv_connector.runtime.facade import Log, SubjectMessenger, write_to_log
from kv_connector.weights.commands import Applied, Apply, Dial
from kv_connector.weights.landing import SharedMemory
from kv_connector.weights.manifest import Manifest

DECISION_SECONDS = 5.0
"""Until the messenger's thread answers, which never blocks; then nothing is changed."""
WAIT_SECONDS = 1.0
OTHER_TYPES = (
    "the tensors' types or order are not those of earlier updates: send them as before, or start this server again"
)
_NO_LANDING_BYTES = 4096
"""Of a messenger that only refuses."""


class WeightsHost:
    """Takes updates for one engine. Any thread may call it, but :meth:`decide` only the engine's."""

    def __init__(self, options: Options, logger: logging.Logger) -> None:
        """``options`` are those of ``parse_weights_options``."""
        self._options = options
        self._logger = logger
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._messenger: SubjectMessenger | None = None
        self._asked_count = 0
        self._answered: tuple[int, str] = (0, "")
        """How many questions of :meth:`decide` the messenger has answered, in their order, and its last answer."""
        self._landed = (0, 0, "")
        """The id and the version of the update that has landed last, and the digest of its bytes."""
        self._loaded = (0, 0.0)
        """The version that the engine has loaded last, and when by the monotonic clock."""
        self._refusal = ("", 0.0)
        """Why weights were refused last, and when."""
        self._taking: list[str] = []
        """The tickets of senders for whose tensors the landing may still be made."""
        self.manifest: Manifest | None = None
        """The tensors of the landing; None before the first sender."""
        self.landing: SharedMemory | None = None

    def dial(self, sender: str, ticket: str, manifest: Manifest, unfit: str) -> None:
        """Connects to a sender at ``HOST:PORT``, from another thread; the engine goes on meanwhile.

        ``unfit`` says why the engine cannot take its weights, which the sender is told; "" if it can.
        """
        addresses = read_list(sender)
        if len(addresses) != 1:
            self._logger.error("the sender of weights is %.200r, expected HOST:PORT: it is not dialled", sender)
        elif not self._options.shared_secret and not says_loopback(addresses[0].host):
            self._logger.error(
                "a sender of weights at %s is not dialled: without weights_secret only loopback is, since the address"
                " proves nothing; set weights_secret_file on this server and on the sender",
                sender,
            )
        else:
            if not unfit:
                self._taking.append(ticket)
            dial = Dial(addresses[0].host, addresses[0].port, ticket, unfit)
            threading.Thread(target=self._dial, args=(dial, manifest), name="kv-messenger-weights", daemon=True).start()

    @property
    def is_taken(self) -> bool:
        """Whether it has a landing, or one is being made: it has no room for other tensors then."""
        return bool(self._taking) or self.landing is not None

    def decide(self, update_id: int) -> str:
        """Why the engine must not load this update; "" = it loads the landing now, and calls :meth:`applied`."""
        try:
            if self._messenger is None:
                return "no sender is connected"
            self._messenger.submit([Apply(update_id)])
            self._asked_count += 1
            asked = self._asked_count
            with self._changed:
                if self._changed.wait_for(lambda: self._answered[0] >= asked, DECISION_SECONDS):
                    return self._answered[1]
            return f"the messenger did not answer within {DECISION_SECONDS:g} s"
        except Exception as fault:
            return f"the messenger failed: {fault}"

    def version_of(self, update_id: int) -> int:
        """The version of an update that has landed last; 0 for any other."""
        landed_id, version, _ = self._landed
        return version if landed_id == update_id else 0

    def digest_of(self, update_id: int) -> str:
        """That of the bytes of an update that has landed last; "" for any other."""
        landed_id, _, digest = self._landed
        return digest if landed_id == update_id else ""

    def applied(self, update_id: int, failure: str = "") -> None:
        """Every rank serves the update, or, with a reason, none has begun to load it."""
        if failure:
            self._refusal = (failure, time.monotonic())
        else:
            self._loaded = (self.version_of(update_id), time.monotonic())
        try:
            if self._messenger is not None:
                self._messenger.submit([Applied(update_id, failure)])
        except Exception as fault:
            self._logger.error("the end of update %d of the weights could not be reported: %s", update_id, fault)

    def status(self) -> dict[str, object]:
        """What a user sees of it, as JSON. Times are seconds ago; raises MessengerError."""
        now = time.monotonic()
        seen: dict[str, object] = {"landing": "none, since no sender has come yet"}
        messenger, landing = self._messenger, self.landing
        if messenger is not None and landing is not None:
            stats = messenger.stats()
            written = "is written to" if stats.gauges.get("kv_messenger_windows_open") else "is not written to"
            seen["landing"] = f"{landing.length_bytes} bytes, {written}"
            seen["ended"] = dict(stats.reasons.get("kv_messenger_weight_updates_ended", {}))
        (version, loaded_at), (refusal, refused_at) = self._loaded, self._refusal
        if version:
            seen["loaded"] = f"version {version}, {now - loaded_at:.0f} s ago"
        if refusal:
            seen["refused"] = f"{refusal} ({now - refused_at:.0f} s ago)"
        return seen

    def close(self, why: str) -> None:
        """Ends the messenger with its engine; ``why`` is for senders, a predicate of the engine."""
        with self._lock:
            messenger, self._messenger = self._messenger, None
        if messenger is not None:
            messenger.close(why)

    def _dial(self, dial: Dial, manifest: Manifest) -> None:
        try:
            with self._lock:
                try:
                    unfit = dial.refusal or self._open(manifest)
                finally:
                    if not dial.refusal and dial.ticket in self._taking:
                        self._taking.remove(dial.ticket)
                if not unfit and self._messenger is not None:
                    self._messenger.submit([dial])
                    return
            self._refuse(Dial(dial.host, dial.port, dial.ticket, unfit), manifest)
        except Exception as fault:
            self._logger.error("the sender of weights at %s:%d could not be dialled: %s", dial.host, dial.port, fault)

    def _open(self, manifest: Manifest) -> str:
        """Makes landing and messenger for the first sender's tensors. Returns why these cannot land."""
        if self.manifest is not None:
            return (
                ""
                if manifest.digest == self.manifest.digest
                else manifest.difference_from(self.manifest) or OTHER_TYPES
            )
        try:
            landing = SharedMemory(manifest.length_bytes)
        except OSError as full:
            return f"this server has no memory for a landing of {manifest.length_bytes} bytes ({full}): give it more"
        try:
            self._messenger = self._opened(self._options, manifest, landing)
        except KvConnectorError as failure:
            return f"this server's messenger of weights does not open: {failure}"
        self.landing, self.manifest = landing, manifest
        threading.Thread(
            target=self._listen, args=(self._messenger,), name="kv-messenger-weights-events", daemon=True
        ).start()
        return ""

    def _opened(self, options: Options, manifest: Manifest, memory: SharedMemory) -> SubjectMessenger:
        subject = {"kind": "weights", "side": "host", "manifestDigest": manifest.digest, **memory.described()}
        messenger = SubjectMessenger.open_subject(options, subject)
        self._logger.info("a messenger of weights is open: %s", messenger.opened)
        return messenger

    def _refuse(self, dial: Dial, manifest: Manifest) -> None:
        """Tells a sender why nothing of it can be taken, by a messenger for this one sentence."""
        self._logger.error("weights of %s:%d are refused: %s", dial.host, dial.port, dial.refusal)
        self._refusal = (dial.refusal, time.monotonic())
        memory = SharedMemory(_NO_LANDING_BYTES)
        messenger = self._opened(dataclasses.replace(self._options, metrics_port=-1), manifest, memory)
        try:
            messenger.submit([dial])
            deadline = time.monotonic() + self._options.connect_limit_seconds
            while time.monotonic() < deadline:
                messenger.wait(WAIT_SECONDS)
                if any(event["event"] == "ended" for event in messenger.poll_raw()):
                    return
        finally:
            messenger.close()

    def _listen(self, messenger: SubjectMessenger) -> None:
        while True:
            try:
                messenger.wait(WAIT_SECONDS)
                events = messenger.poll_raw()
            except MessengerError as ended:
                if self._messenger is messenger:
                    self._logger.error("no more weights are taken until this engine is started again: %s", ended)
                return
            for event in events:
                self._on(event)

    def _on(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "decided":
                with self._changed:
                    self._answered = (self._answered[0] + 1, event["reason"])
                    self._changed.notify_all()
            case "landed":
                self._landed = (event["updateId"], event["version"], event["digest"])
                self._logger.info("version %d of the weights has landed and may be applied", event["version"])
            case "ended":
                self._logger.info("a sender of weights has left: %s", event["reason"])
            case "log":
                write_to_log(Log(event["level"], event["message"]), self._logger)
