"""The messenger as Python sees it: one typed method for each function of docs/boundary.md."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Protocol, Self, TypedDict

from kv_connector import rdma_topology
from kv_connector._affinity import all_of_them, allowed_cores, parents_cores
from kv_connector._jvm import boot
from kv_connector._table import NO_ANSWER_CAPACITY_BYTES, Function, FunctionTable
from kv_connector.exceptions import MessengerError
from kv_connector.options import Options

logger = logging.getLogger("kv_connector")


class Memory(TypedDict):
    """Host memory that KV lies in, as mapped by this process; ``memfd`` is -1 where no other process can map it."""

    kind: Literal["host"]
    address: int
    lengthBytes: int
    memfd: int


class DeviceMemory(TypedDict):
    """A GPU's memory that KV lies in; ``handleKind`` says as what other processes can be given it."""

    kind: Literal["cuda"]
    device: int
    address: int
    lengthBytes: int
    handleKind: Literal["none", "posixFd", "fabric"]


class Layer(TypedDict):
    """Where the pages of one layer are inside one of its rank's memories."""

    name: str
    groupIndex: int
    memoryIndex: int
    offsetBytes: int
    pageStrideBytes: int
    pageBytes: int


class Rank(TypedDict):
    """One rank's part of the KV cache."""

    tpRank: int
    ppRank: int
    memories: Sequence[Memory | DeviceMemory]
    layers: list[Layer]


class Group(TypedDict):
    """Layers whose pages are alike and are given out together."""

    kind: Literal["full", "window", "chunk", "state"]
    windowTokens: int
    dtype: str
    elementBytes: int
    pageTokens: int
    layout: Literal["HND", "NHD", "LATENT"]
    kvHeadCount: int
    pageCount: int


class Geometry(TypedDict):
    """The KV cache of the ranks that one messenger serves, under the names of docs/boundary.md."""

    model: str
    weightsDigest: NotRequired[str]
    """By what two trainings of one model are told apart; "" or absent where that is not known."""
    tpSize: int
    ppSize: int
    groups: list[Group]
    ranks: list[Rank]


class ContextRow(TypedDict):
    """One kind of row that goes with a transfer beside its KV; row ``n`` belongs to the engine's slot ``n``."""

    name: str
    address: int
    lengthBytes: int
    memfd: int
    rowStrideBytes: int
    rowBytes: int
    sending: NotRequired[Literal["always", "onRequest"]]
    """With which transfers it goes: all (if absent), or those whose ``fetch`` names it in ``contextKinds``."""


LAG_NONE = 0
"""One rank: a count of c proves that layers 0 to c - 1 are complete."""

LAG_LEAD_ONLY = 1
"""Several ranks, and the counter is the first one's, bumped before the layer's all-reduce: one layer less is proven."""

Command = Mapping[str, Any]
"""One command of docs/boundary.md, with its ``do``."""


@dataclass(frozen=True, slots=True)
class Released:
    """Prefiller: nothing reads the request's pages any more."""

    request: str


@dataclass(frozen=True, slots=True)
class Granted:
    """Prefiller, announced requests: a decoder has pages for tokens ``[first_token, prompt_tokens)``."""

    request: str
    prompt_tokens: int
    first_token: int
    context_kinds: tuple[str, ...] = ()
    """Context rows that it asks for."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Prefiller, announced requests: it will not be sent (any further)."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Decoder, expected transfers: the prefiller's engine has ended the prompt, or will not be heard of."""

    transfer: str
    prompt_digest: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """Decoder: the KV of the request is in its pages."""

    request: str
    pages: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Decoder: the request ended without its KV; nothing writes to its pages."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Decoder: the request will not get its KV, and its pages may still be written to until it is :class:`Failed`."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened when in one transfer."""

    transfer: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Log:
    """A line for the engine's log."""

    level: Literal["info", "warning", "error"]
    message: str


Event = Released | Granted | Stopped | Prefilled | Arrived | Quarantined | Failed | Timeline | Log

_LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def write_to_log(event: Timeline | Log, engine_logger: logging.Logger) -> None:
    """Writes an event that is for the engine's log only, as its caller's line.

    A decoder's timeline comes with the news that its KV is there, so this is when the engine has that news.
    """
    match event:
        case Timeline(transfer, fields):
            polled = {"polledNs": time.monotonic_ns()} if fields.get("side") == "decoder" else {}
            line = json.dumps({"transfer": transfer, **fields, **polled}, separators=(",", ":"))
            engine_logger.info("kv_messenger timeline %s", line, stacklevel=2)
        case Log(level, message):
            engine_logger.log(_LOG_LEVELS[level], "%s", message, stacklevel=2)


class Histogram(TypedDict):
    """What was observed since open."""

    buckets: list[int]
    """How many values lie in each bucket, and not in the one before; the last has no upper bound."""
    sum: float


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since open, and values of now; names are those of docs/metrics.md."""

    counters: Mapping[str, float]
    gauges: Mapping[str, float]
    reasons: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of counters that are told apart by reason: what each reason has of them."""
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """What is still held; clean when nothing is."""

    clean: bool
    held: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Opened:
    """Where an open messenger listens, and which word it watches."""

    handle: int
    engine_id: str
    incarnation: str
    control_host: str
    control_port: int
    metrics_host: str
    metrics_port: int
    layer_counter_address: int

    def __str__(self) -> str:
        pages = {
            "control": (self.control_host, self.control_port),
            "metrics": (self.metrics_host, self.metrics_port),
        }
        listeners = [f"{name} {host}:{port}" for name, (host, port) in pages.items() if port > 0]
        return ", ".join([f"engine {self.engine_id}", f"incarnation {self.incarnation}", *listeners])


class MessengerPort(Protocol):
    """What a connector needs of a messenger; tests bring a simulated one."""

    @property
    def opened(self) -> Opened:
        """Where it listens."""

    def submit(self, commands: Sequence[Command]) -> None:
        """Enqueues commands, in order; never blocks."""

    def poll(self) -> list[Event]:
        """Takes what has happened since the last poll; never blocks."""

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there is something to poll, or the limit is over."""

    def stats(self) -> Stats:
        """The figures of now."""

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        """Waits until no write reads the pages of these prefill requests; returns those for which that is sure."""

    def leak_check(self) -> LeakCheck:
        """What is held for unfinished work."""

    def close(self) -> None:
        """Ends everything, within a limit; harmless a second time."""


OUT_CAPACITY_BYTES = 1 << 20
"""Room for one answer; events that do not fit come with the next poll."""


class Messenger:
    """The messenger in Java. Any thread may call it; a forked child of the process may not.

    It does not start threads in Python and is never called by Java.
    """

    def __init__(self, table: FunctionTable, opened: Opened) -> None:
        self._table = table
        self._opened = opened
        self._pid = os.getpid()
        self._closed = False
        self._lock = threading.Lock()
        self._out = ctypes.create_string_buffer(OUT_CAPACITY_BYTES)
        atexit.register(self._close_at_exit)

    @classmethod
    def open(
        cls,
        options: Options,
        geometry: Geometry,
        context_rows: Sequence[ContextRow] = (),
        *,
        layer_counter_lag: int = LAG_NONE,
    ) -> Self:
        """Boots the JVM if this process has none, and opens a messenger in it; it listens when this returns."""
        options, near = _with_devices(options)
        asked = {
            "options": options.for_java(),
            "geometry": geometry,
            "contextRows": list(context_rows),
            "layerCounterLag": layer_counter_lag,
        }
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
        return cls(table, opened)

    @property
    def opened(self) -> Opened:
        """Where it listens."""
        return self._opened

    def submit(self, commands: Sequence[Command]) -> None:
        """Enqueues commands, in order; never blocks."""
        if commands:
            self._call(Function.SUBMIT, _encode({"commands": commands}))

    def poll(self) -> list[Event]:
        """Takes what has happened since the last poll; never blocks."""
        answer = self._call(Function.POLL)
        return [decode_event(event) for event in json.loads(answer)["events"]] if answer else []

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there is something to poll, or the limit is over; other threads run meanwhile."""
        self._check_usable()
        asked = {"limitMicros": max(1, round(limit_seconds * 1e6))}
        self._table.wait(Function.AWAIT, self._opened.handle, _encode(asked), NO_ANSWER_CAPACITY_BYTES)

    def stats(self) -> Stats:
        """The figures of now."""
        answer = json.loads(self._call(Function.STATS))
        return Stats(answer["counters"], answer["gauges"], answer["reasons"], answer["histograms"])

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        """Waits until no write reads the pages of these prefill requests; returns those for which that is sure."""
        if not requests:
            return []
        asked = {"requests": list(requests), "limitMillis": max(1, round(limit_seconds * 1000))}
        self._check_usable()
        answer = self._table.wait(Function.FENCE, self._opened.handle, _encode(asked))
        return [str(request) for request in json.loads(answer)["fenced"]]

    def leak_check(self) -> LeakCheck:
        """What is held for unfinished work."""
        answer = json.loads(self._call(Function.LEAK_CHECK))
        return LeakCheck(clean=answer["clean"], held=answer["held"])

    def close(self) -> None:
        """Ends everything, within a limit that Java keeps; harmless a second time, and in a forked child."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
        atexit.unregister(self._close_at_exit)
        self._table.wait(Function.CLOSE, self._opened.handle, b"")

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


def _with_devices(options: Options) -> tuple[Options, Callable[[frozenset[int]], frozenset[int]]]:
    """The options with the RDMA devices that they leave to the topology, and the cores near these."""
    choice = rdma_topology.for_options(options, allowed_cores())
    if choice is None or not choice.devices:
        return options, all_of_them
    devices = choice.devices
    if not options.verbs_devices:
        options = dataclasses.replace(options, verbs_devices=choice.names)
    return options, lambda cores: rdma_topology.cores_near(devices, cores)


def decode_event(event: Mapping[str, Any]) -> Event:
    """One event of docs/boundary.md as a value."""
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
        case "arrived":
            return Arrived(event["request"], event["pages"])
        case "failed":
            return Failed(event["request"], event["reason"])
        case "quarantined":
            return Quarantined(event["request"], event["reason"])
        case "timeline":
            return Timeline(event["transfer"], {k: v for k, v in event.items() if k not in ("event", "transfer")})
        case "log":
            return Log(event["level"], event["message"])
        case other:
            raise MessengerError(f"event is {other!r}, which this wheel does not know: its jar is of another version")


def _encode(asked: object) -> bytes:
    return json.dumps(asked, separators=(",", ":")).encode()
