"""The messenger's interface for Python: one typed method for each function of docs/boundary.md."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypedDict

from kv_connector.configuration.options import Options
from kv_connector.exceptions import MessengerError
from kv_connector.memory.geometry import ContextRow, Geometry
from kv_connector.runtime import page_key, rdma_topology
from kv_connector.runtime.affinity import all_of_them, allowed_cores, parents_cores
from kv_connector.runtime.commands import Command, OfferReason, encode
from kv_connector.runtime.function_table import NO_ANSWER_CAPACITY_BYTES, Function, FunctionTable
from kv_connector.runtime.jvm import boot

logger = logging.getLogger("kv_connector")


LAG_NONE = 0
"""One rank: a count of c proves that layers 0 to c - 1 are complete."""

LAG_LEAD_ONLY = 1
"""Several ranks: the counter is the first one's and precedes the layer's all-reduce, so it proves one layer less."""


@dataclass(frozen=True, slots=True)
class Released:
    """Prefiller: nothing reads the request's pages any more."""

    request: str


@dataclass(frozen=True, slots=True)
class Granted:
    """Prefiller, announced requests: a decoder has granted pages for tokens ``[first_token, prompt_tokens)``."""

    request: str
    prompt_tokens: int
    first_token: int
    context_kinds: tuple[str, ...] = ()
    """The kinds of context rows that the decoder requests."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Prefiller, announced requests: the request will not be sent (any further)."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Decoder, expected transfers: the prefiller's engine has ended the prompt, or no report about it will come."""

    transfer: str
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class Connected:
    """Decoder: a session with the messenger at this address was opened; a restarted one has another incarnation."""

    host: str
    port: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Decoder: no session with a messenger at this address is open any more, or none could be opened."""

    host: str
    port: int
    incarnation: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Decoder: the request's KV is in its pages."""

    request: str
    pages: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Decoder: the request ended without its KV; nothing writes to its pages any more."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Decoder: the request will not get its KV, but its pages may still be written to until :class:`Failed` follows."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Offered:
    """Asker: the answer to an ask; with 0 tokens, why nothing is offered."""

    request: str
    held_tokens: int
    reason: OfferReason


@dataclass(frozen=True, slots=True)
class Asked:
    """Source: a part of a peer's question for what the prefix cache holds of a prompt; the parts come in order."""

    transfer: str
    prompt_digest: str
    cache_salt: str
    token_count: int
    """Of the whole question."""
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The times of the events of one transfer."""

    transfer: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """A line for the engine's log."""

    level: Literal["info", "warning", "error"]
    message: str


Event = (
    Released
    | Granted
    | Stopped
    | Prefilled
    | Connected
    | Disconnected
    | Arrived
    | Quarantined
    | Failed
    | Offered
    | Asked
    | Timeline
    | Log
)

_LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def write_to_log(event: Timeline | Log, engine_logger: logging.Logger) -> None:
    """Writes a log event to the engine's log, attributed to the caller's line.

    A decoder's timeline arrives together with the event that its KV is complete, so it is written when the engine
    learns of that.
    """
    match event:
        case Timeline(transfer, fields):
            polled = {"polledNs": time.monotonic_ns()} if fields.get("side") == "decoder" else {}
            line = json.dumps({"transfer": transfer, **fields, **polled}, separators=(",", ":"))
            engine_logger.info("kv_messenger timeline %s", line, stacklevel=2)
        case Log(level, message):
            engine_logger.log(_LOG_LEVELS[level], "%s", message, stacklevel=2)


class Histogram(TypedDict):
    """The values observed since open."""

    buckets: list[int]
    """The number of values in each bucket, not cumulative; the last bucket has no upper bound."""
    sum: float


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since open and current values; the names are those of docs/metrics.md."""

    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    reasons: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For counters with a ``reason`` label, the value of each reason."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """The resources that are still held; clean if there are none."""

    clean: bool
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Opened:
    """The addresses of an open messenger, and that of its layer counter."""

    handle: int
    engine_id: str
    incarnation: str
    control_host: str
    control_port: int
    metrics_host: str
    metrics_port: int
    layer_counter_address: int
    """0 if its subject counts no layers."""

    def __str__(self) -> str:
        pages = {
            "control": (self.control_host, self.control_port),
            "metrics": (self.metrics_host, self.metrics_port),
        }
        listeners = [f"{name} {host}:{port}" for name, (host, port) in pages.items() if port > 0]
        return ", ".join([f"engine {self.engine_id}", f"incarnation {self.incarnation}", *listeners])


class MessengerPort(Protocol):
    """The interface of a messenger that connectors use; tests implement it by a simulation."""

    @property
    def opened(self) -> Opened:
        """The addresses of the messenger."""

    def submit(self, commands: Sequence[Command]) -> None:
        """Enqueues commands, in order; never blocks."""

    def poll(self) -> list[Event]:
        """Takes the events since the last poll; never blocks."""

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there are events to poll, or until the limit."""

    def stats(self) -> Stats:
        """The current statistics."""

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        """Waits until no write reads the pages of these prefills; returns the requests for which that is certain."""

    def leak_check(self) -> LeakCheck:
        """The resources that are held for unfinished work."""

    def close(self, why: str = "") -> None:
        """Closes the messenger, within a time limit; harmless a second time.

        ``why`` is for peers, a predicate of the engine; "" = it is shutting down.
        """


OUT_CAPACITY_BYTES = 1 << 20
"""The size of the buffer for one answer; events that do not fit come with the next poll."""


class SubjectMessenger:
    """A messenger in Java, whatever it moves. Any thread may call it, but not a forked child of the process.

    It starts no threads in Python, and Java never calls into Python.
    """

    def __init__(self, table: FunctionTable, opened: Opened) -> None:
        self._table = table
        self._opened = opened
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._out = ctypes.create_string_buffer(OUT_CAPACITY_BYTES)
        self._page_key = ""
        self._page_key_file: Path | None = None
        atexit.register(self._close_at_exit)

    def _leave_key(self, key: str) -> None:
        if self._opened.metrics_port > 0:
            self._page_key = key
            self._page_key_file = page_key.keep(key, self._opened.metrics_port)

    @classmethod
    def open_subject(cls, options: Options, subject: Mapping[str, object], gpus: Sequence[int] = ()) -> Self:
        """Starts the JVM if this process has none, and opens a messenger, which listens when this returns.

        Raises KvConnectorError. ``subject`` names its ``kind``, with what a messenger of that kind needs; ``gpus`` are
        the devices whose memory it moves, for the choice of RDMA devices near them.
        """
        options, near = _with_devices(options, gpus)
        key = page_key.made(options.shared_secret)
        asked = {"options": options.for_java() | {"pageKey": key}, "subject": subject}
        with parents_cores(near):
            table = boot(options)
            answer = json.loads(table.wait(Function.OPEN, 0, _encode(asked)))
        opened = Opened(
            handle=answer["handle"],
            engine_id=answer["engineId"],
            incarnation=str(answer["incarnation"]),
            control_host=answer["controlHost"],
            control_port=answer["controlPort"],
            metrics_host=answer["metricsHost"],
            metrics_port=answer["metricsPort"],
            layer_counter_address=answer["layerCounterAddress"],
        )
        messenger = cls(table, opened)
        messenger._leave_key(key)
        return messenger

    @property
    def opened(self) -> Opened:
        """The addresses of the messenger."""
        return self._opened

    def submit(self, commands: Sequence[Command]) -> None:
        """Enqueues commands, in order; never blocks."""
        if commands:
            self._call(Function.SUBMIT, _encode({"commands": commands}))

    def poll_raw(self) -> list[Mapping[str, Any]]:
        """Takes the events since the last poll, as the subject writes them; never blocks."""
        answer = self._call(Function.POLL)
        return json.loads(answer)["events"] if answer else []

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there are events to poll, or until the limit; releases the GIL."""
        self._check_usable()
        asked = {"limitMicros": max(1, round(limit_seconds * 1e6))}
        self._table.wait(Function.AWAIT, self._opened.handle, _encode(asked), NO_ANSWER_CAPACITY_BYTES)

    def stats(self) -> Stats:
        """The current statistics."""
        answer = json.loads(self._call(Function.STATS))
        return Stats(answer["counters"], answer["gauges"], answer["reasons"], answer["histograms"])

    def leak_check(self) -> LeakCheck:
        """The resources that are held for unfinished work."""
        answer = json.loads(self._call(Function.LEAK_CHECK))
        return LeakCheck(clean=answer["clean"], held=answer["held"])

    def close(self, why: str = "") -> None:
        """Closes the messenger, within a time limit that Java keeps; harmless a second time, and in a forked child.

        ``why`` is for peers, a predicate of the engine; "" = it is shutting down.
        """
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        atexit.unregister(self._close_at_exit)
        page_key.forget(self._page_key_file, self._page_key)
        self._table.wait(Function.CLOSE, self._opened.handle, _encode({"why": why}) if why else b"")

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except MessengerError as failure:
            logger.warning("%s", failure)

    def _call(self, function: Function, request: bytes = b"") -> bytes:
        self._check_usable()
        with self._lock:
            return self._table.call(function, self._opened.handle, request, self._out)

    def _check_usable(self) -> None:
        if self._closed:
            raise MessengerError("the messenger is closed: open another one")
        if os.getpid() != self._pid:
            raise MessengerError(
                f"the messenger was opened by process {self._pid} and is called in process {os.getpid()}, forked from"
                " it, where no JVM runs: open the messenger after the fork"
            )


class Messenger(SubjectMessenger):
    """The messenger of a KV cache."""

    @classmethod
    def open(
        cls,
        options: Options,
        geometry: Geometry,
        context_rows: Sequence[ContextRow] = (),
        *,
        layer_counter_lag: int = LAG_NONE,
        asks_by_events: bool = False,
    ) -> Self:
        """Opens a messenger of this KV cache: see ``open_subject``.

        ``layer_counter_lag`` is LAG_NONE or LAG_LEAD_ONLY. With ``asks_by_events`` peers' questions come as ``Asked``.
        """
        memories = [memory for rank in geometry["ranks"] for memory in rank["memories"]]
        subject = {
            "kind": "kv_cache",
            "geometry": geometry,
            "contextRows": list(context_rows),
            "layerCounterLag": layer_counter_lag,
            "asksByEvents": asks_by_events,
        }
        return cls.open_subject(options, subject, [memory["device"] for memory in memories if memory["kind"] == "cuda"])

    def poll(self) -> list[Event]:
        """Takes the events since the last poll; never blocks."""
        return decode_events(self.poll_raw())

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        """Waits until no write reads the pages of these prefills; returns the requests for which that is certain."""
        if not requests:
            return []
        asked = {"requests": list(requests), "limitMillis": max(1, round(limit_seconds * 1000))}
        self._check_usable()
        answer = self._table.wait(Function.FENCE, self._opened.handle, _encode(asked))
        return [str(request) for request in json.loads(answer)["fenced"]]


def _with_devices(options: Options, gpus: Sequence[int]) -> tuple[Options, Callable[[frozenset[int]], frozenset[int]]]:
    """The options, with RDMA devices selected by topology if none are named, and the cores near these."""
    choice = rdma_topology.for_options(options, allowed_cores(), gpus=gpus)
    if choice is None or not choice.devices:
        return options, all_of_them
    devices = choice.devices
    if not options.verbs_devices:
        options = dataclasses.replace(options, verbs_devices=choice.names)
    return options, lambda cores: rdma_topology.cores_near(devices, cores)


def decode_events(events: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Decodes what one poll has taken out of the messenger: an event that cannot be read harms its own request only."""
    decoded: list[Event] = []
    for event in events:
        try:
            decoded.append(decode_event(event))
        except Exception:
            logger.exception("an event of the messenger cannot be read: %.200s", event)
    return decoded


def decode_event(event: Mapping[str, Any]) -> Event:
    """Decodes one event of docs/boundary.md."""
    match event["event"]:
        case "released":
            return Released(event["request"])
        case "granted":
            rows = tuple(event["contextKinds"])
            return Granted(event["request"], event["promptTokens"], event["firstToken"], rows)
        case "stopped":
            return Stopped(event["request"], event["reason"])
        case "prefilled":
            return Prefilled(event["transfer"], event["promptDigest"])
        case "connected":
            return Connected(event["host"], event["port"], event["incarnation"])
        case "disconnected":
            return Disconnected(event["host"], event["port"])
        case "arrived":
            return Arrived(event["request"], event["pages"])
        case "failed":
            return Failed(event["request"], event["reason"])
        case "quarantined":
            return Quarantined(event["request"], event["reason"])
        case "offered":
            return Offered(event["request"], event["heldTokens"], event["reason"])
        case "asked":
            return Asked(
                event["transfer"],
                event["promptDigest"],
                event["cacheSalt"],
                event["tokenCount"],
                event["tokenIds"],
            )
        case "timeline":
            return Timeline(event["transfer"], {k: v for k, v in event.items() if k not in ("event", "transfer")})
        case "log":
            return Log(event["level"], event["message"])
        case other:
            raise MessengerError(f"event is {other!r}, which this wheel does not know: its jar is of another version")


def _encode(asked: object) -> bytes:
    return json.dumps(asked, separators=(",", ":"), default=encode).encode()
