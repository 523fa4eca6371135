"""An engine that captures graphs while peers come and go: each a messenger, with pages in a device's memory.

The engine has torch and its captures, in the mode in which a forbidden call of any thread ends one. A guest has what a
messenger needs, so that it starts soon. Each serves commands of a test, in a process of its own.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from kv_connector import Arrived, Failed, Log, Messenger, Opened, Released, Stopped, parse_options
from kv_connector.memory.cuda_driver import LIBRARY, CudaDriver
from kv_connector.memory.device_memory import DeviceMemories
from kv_connector.runtime.commands import (
    Announce,
    ChunkPages,
    Computed,
    Fetch,
    FetchPages,
    PrefillEnded,
    PrefillerAddress,
)

LAYERS, PAGES, PAGE_BYTES, PAGE_TOKENS = 4, 16, 64 << 10, 16
LENGTH_BYTES = LAYERS * PAGES * PAGE_BYTES
PROMPT_TOKENS = PAGES * PAGE_TOKENS
WAIT_SECONDS = 0.05
INVALIDATED = 2
"""A CUstreamCaptureStatus."""
ENDS = (Arrived, Failed, Released, Stopped)
OPTIONS = {
    "listen_port": 0,
    "metrics_port": -1,
    "aot_cache": False,
    "timelines": "off",
    "connect_limit_seconds": 600,
    "silence_limit_seconds": 600,
    "grant_wait_seconds": 600,
    "unheard_limit_seconds": 600,
}


def geometry(address: int, handle: str) -> Any:
    layer_bytes = PAGES * PAGE_BYTES
    group = {
        "kind": "full",
        "windowTokens": 0,
        "dtype": "bfloat16",
        "elementBytes": 2,
        "pageTokens": PAGE_TOKENS,
        "layout": "HND",
        "kvHeadCount": 1,
        "pageCount": PAGES,
    }
    memory = {"kind": "cuda", "device": 0, "address": address, "lengthBytes": LENGTH_BYTES, "handleKind": handle}
    layers = [
        {
            "name": f"layer {number}",
            "groupIndex": 0,
            "memoryIndex": 0,
            "offsetBytes": number * layer_bytes,
            "pageStrideBytes": PAGE_BYTES,
            "pageBytes": PAGE_BYTES,
        }
        for number in range(LAYERS)
    ]
    rank = {"tpRank": 0, "ppRank": 0, "memories": [memory], "layers": layers}
    return {"model": "captured", "tpSize": 1, "ppSize": 1, "groups": [group], "ranks": [rank]}


class Side:
    """Pages of a device, all of them of one transfer at a time, and a messenger while one is open."""

    def __init__(self, address: int, handle: str) -> None:
        self._geometry = geometry(address, handle)
        found = ctypes.CDLL(LIBRARY).standInBytes
        found.argtypes, found.restype = [ctypes.c_uint64, ctypes.c_size_t], ctypes.c_void_p
        whole = (ctypes.c_ubyte * LENGTH_BYTES).from_address(found(address, LENGTH_BYTES))
        self._bytes = memoryview(whole).cast("B")
        self._messenger: Messenger | None = None
        self._numbers = itertools.count()

    @property
    def _open(self) -> Messenger:
        assert self._messenger is not None
        return self._messenger

    def open(self, role: Any, transports: list[str]) -> tuple[str, int, str]:
        """The messenger's address."""
        named = f"{role}-{next(self._numbers)}"
        options = parse_options({**OPTIONS, "transports": transports}, role=role, engine_id=named)
        self._messenger = Messenger.open(options, self._geometry)
        opened: Opened = self._messenger.opened
        return opened.control_host, opened.control_port, opened.engine_id

    def close(self) -> None:
        self._open.close()

    def fill(self, number: int) -> None:
        """All pages with bytes that follow from the number and the page."""
        self._bytes[:] = content(number)

    def holds(self, number: int) -> bool:
        return self._bytes == content(number)

    def send(self, name: str) -> None:
        """All pages are computed already."""
        pages = [ChunkPages(0, list(range(PAGES)))]
        computed = Computed(name, name, name, PROMPT_TOKENS, PROMPT_TOKENS, pages)
        self._open.submit([Announce(name, name, name), computed, PrefillEnded(name, "finished")])

    def fetch(self, name: str, prefiller: tuple[str, int, str]) -> None:
        """Into all pages, in the opposite order."""
        pages = [FetchPages(list(reversed(range(PAGES))))]
        self._open.submit([Fetch(name, name, name, [PrefillerAddress(*prefiller)], PROMPT_TOKENS, 0, pages, 0)])

    def ended(self, name: str) -> str:
        """How the transfer ends here; returns when it has."""
        while True:
            for event in self._open.poll():
                if isinstance(event, Log):
                    print(event.level, event.message, file=sys.stderr)
                elif isinstance(event, ENDS) and event.request == name:
                    return f"{type(event).__name__} {getattr(event, 'reason', '')}".strip()
            self._open.wait(WAIT_SECONDS)

    def await_solitude(self) -> None:
        """Returns when no peer is connected any more, and nothing is held for one."""
        while self._open.stats().gauges["kv_messenger_sessions_open"] or not self._open.leak_check().clean:
            self._open.poll()
            self._open.wait(WAIT_SECONDS)


def content(number: int) -> bytes:
    """A page holds one byte throughout; pages of the fetching side lie the other way round."""
    return b"".join(
        bytes([(number + 16 * layer + min(page, PAGES - 1 - page)) % 256]) * PAGE_BYTES
        for layer in range(LAYERS)
        for page in range(PAGES)
    )


class Guest(Side):
    def __init__(self) -> None:
        driver = CudaDriver()
        driver.initialise()
        context = ctypes.c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        driver.call("cuCtxSetCurrent", context)
        self._memories = DeviceMemories(driver)
        super().__init__(self._memories.allocate(LENGTH_BYTES, 0).address, "posixFd")


class Engine(Side):
    def __init__(self) -> None:
        import torch
        from kv_connector.memory.device_allocation import DeviceAllocation

        self._torch = torch
        torch.cuda.init()
        self._allocation = DeviceAllocation(torch, CudaDriver(), logging.getLogger("captures"))
        with self._allocation:
            self._storage = torch.empty(LENGTH_BYTES, dtype=torch.uint8, device="cuda")
        address = self._storage.data_ptr()
        self._weights = torch.empty(64, 64, dtype=torch.bfloat16, device="cuda")
        super().__init__(address, self._allocation.handle_kind_of(address, LENGTH_BYTES))

    def begin_capture(self) -> None:
        """In torch's default mode, GLOBAL, as vLLM and SGLang capture."""
        self._capture = self._torch.cuda.graph(self._torch.cuda.CUDAGraph())
        self._capture.__enter__()
        self._captured = self._weights @ self._weights

    def is_capture_lost(self) -> bool:
        """As the driver knows before the capture ends."""
        status, stream = ctypes.c_int(), self._torch.cuda.current_stream().cuda_stream
        ctypes.CDLL(LIBRARY).cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
        return status.value == INVALIDATED

    def end_capture(self) -> str:
        """What torch says if the capture is lost; "" if it is not."""
        try:
            self._captured = self._captured + 1  # torch allocates for it, in the capture
            self._capture.__exit__(None, None, None)
        except RuntimeError as lost:
            return str(lost).splitlines()[0]
        return ""


def serve(make: Callable[[], Side], commands: Connection) -> None:
    """Each command is a method's name with its arguments, and is answered by its result."""
    side = make()
    commands.send("ready")
    while (command := commands.recv()) is not None:
        name, *arguments = command
        commands.send(getattr(side, name)(*arguments))
