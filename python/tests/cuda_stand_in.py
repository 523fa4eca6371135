"""The stand-in for NVIDIA's driver, as tests drive it."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_connector.memory.cuda_driver import CudaDriver

ROOT = Path(__file__).resolve().parents[2]
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
GLOBAL_CAPTURE = 0


def library_or_skip() -> str:
    """Its path; compiled by whichever test comes first."""
    found = subprocess.run(
        [ROOT / "examples/setup/find-cuda-stand-in"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return f"{found.stdout.strip()}/libcuda.so.1"


class Device:
    """The stand-in, with a context, and a stream that waits wherever a test wants it to."""

    def __init__(self, library: str) -> None:
        self.driver = CudaDriver(library)
        self.stand_in = ctypes.CDLL(library)
        self.driver.call("cuInit", 0)
        context, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._context = context
        self.use()
        self.driver.call("cuStreamCreate", ctypes.byref(self._stream), 1)
        self._functions: list[object] = []

    def use(self) -> None:
        """Its context is the calling thread's."""
        self.driver.call("cuCtxSetCurrent", self._context)

    def stream(self) -> int:
        return self._stream.value or 0

    def queue(self, run: Callable[[], object]) -> None:
        function = HOST_FUNCTION(lambda _: run())
        self._functions.append(function)
        self.driver.call("cuLaunchHostFunc", self._stream, function, None)

    def hold(self) -> threading.Event:
        """What is queued from now on waits for the event."""
        opened = threading.Event()
        self.queue(opened.wait)
        return opened

    def finish(self) -> None:
        self.driver.call("cuStreamSynchronize", self._stream)

    def capture(self, queue_pass: Callable[[], None]) -> Callable[[], None]:
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuStreamBeginCapture_v2", self._stream, GLOBAL_CAPTURE)
        queue_pass()
        self.driver.call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return lambda: self.driver.call("cuGraphLaunch", made, self._stream)
