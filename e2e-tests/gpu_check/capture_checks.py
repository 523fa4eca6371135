"""Which driver calls of another thread end a capture of CUDA's default mode, and that none does in the relaxed mode.

The stand-in for the driver refuses what is found here (`unsafe_calls` in connector-java/testkit/src/cuda/captures.c).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from gpu_check.counter_checks import GLOBAL_CAPTURE, the_device

GRANULE = 2 << 20
PAGE = 4096
RELAXED = 2
NON_BLOCKING = 1
NEVER_CALLED = "cuCtxSynchronize"
"""By a messenger's thread."""


class Calls:
    """The calls that messengers make, in an order in which each has what it needs. One thread, with a context."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._stream, self._event, self._late = (ctypes.c_void_p() for _ in range(3))
        self._pinned, self._module = ctypes.c_void_p(), ctypes.c_void_p()
        self._plain = ctypes.c_uint64()
        self._pageable = ctypes.create_string_buffer(GRANULE + PAGE)
        self._page = -(-ctypes.addressof(self._pageable) // PAGE) * PAGE

    def all(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Memory by handles last, by the product's own calls."""
        call, byref, size, handle = self._driver.call, ctypes.byref, ctypes.c_size_t, ctypes.c_void_p
        yield "cuStreamCreate", lambda: call("cuStreamCreate", byref(self._stream), NON_BLOCKING)
        yield "cuEventCreate", lambda: call("cuEventCreate", byref(self._event), 2)
        yield "cuMemHostAlloc", lambda: call("cuMemHostAlloc", byref(self._pinned), size(GRANULE), 1)
        yield "cuMemAlloc", lambda: call("cuMemAlloc_v2", byref(self._plain), size(GRANULE))
        yield (
            "cuMemcpyHtoDAsync",
            lambda: call("cuMemcpyHtoDAsync_v2", self._plain, self._pinned, size(PAGE), self._stream),
        )
        yield (
            "cuMemcpyDtoHAsync",
            lambda: call("cuMemcpyDtoHAsync_v2", self._pinned, self._plain, size(PAGE), self._stream),
        )
        yield "cuEventRecord", lambda: call("cuEventRecord", self._event, self._stream)
        yield "cuEventQuery", lambda: self._queried("cuEventQuery", self._event)
        yield "cuStreamQuery", lambda: self._queried("cuStreamQuery", self._stream)
        yield "cuEventSynchronize", lambda: call("cuEventSynchronize", self._event)
        yield "cuStreamSynchronize", lambda: call("cuStreamSynchronize", self._stream)
        yield "cuMemHostRegister", lambda: call("cuMemHostRegister_v2", handle(self._page), size(PAGE), 3)
        yield "cuMemHostUnregister", lambda: call("cuMemHostUnregister", handle(self._page))
        yield (
            "cuMemGetAddressRange",
            lambda: call("cuMemGetAddressRange_v2", byref(ctypes.c_uint64()), byref(ctypes.c_size_t()), self._plain),
        )
        yield "cuPointerGetAttribute", lambda: call("cuPointerGetAttribute", byref(ctypes.c_uint64()), 9, self._plain)
        yield "cuIpcGetMemHandle", lambda: call("cuIpcGetMemHandle", ctypes.create_string_buffer(64), self._plain)
        yield "cuModuleLoadData", self._load
        yield "cuModuleUnload", lambda: call("cuModuleUnload", self._module)
        yield "cuCtxSynchronize", lambda: call("cuCtxSynchronize")
        yield "cuMemFree", lambda: call("cuMemFree_v2", self._plain)
        yield "cuMemFreeHost", lambda: call("cuMemFreeHost", self._pinned)
        yield from self._by_handles()
        yield "cuEventDestroy", lambda: call("cuEventDestroy_v2", self._event)
        yield "cuStreamDestroy", lambda: call("cuStreamDestroy_v2", self._stream)

    def _by_handles(self) -> Iterator[tuple[str, Callable[[], None]]]:
        from kv_connector.memory.device_memory import DeviceMemories

        own, other = DeviceMemories(self._driver), DeviceMemories(self._driver)
        descriptors: list[int] = []

        def allocate() -> None:
            own.allocate(GRANULE, 0)

        def export() -> None:
            descriptors.append(own.export(own.ranges()[0].address))

        def take_in() -> None:
            other.take_in(descriptors[0], GRANULE, 0)
            os.close(descriptors[0])

        yield "cuMemCreate, Map and SetAccess", allocate
        yield "cuMemExportToShareableHandle", export
        yield "cuMemImportFromShareableHandle and Map", take_in
        yield "cuMemUnmap and Release of an import", other.close
        yield "cuMemUnmap and Release", own.close

    def _load(self) -> None:
        from kv_connector.memory.device_word import PTX

        self._module = self._driver.load_module(PTX)

    def _queried(self, name: str, of: ctypes.c_void_p) -> None:
        from kv_connector.memory.cuda_driver import CudaError

        try:
            self._driver.call(name, of)
        except CudaError as fault:
            if "NOT_READY" not in str(fault):
                raise


def beside_a_capture() -> str:
    """First in the default mode, where each answer is a fact; then in the relaxed mode, where each has to go well."""
    by_default = _refused(relaxed=False)
    relaxed = _refused(relaxed=True)
    facts = f"calls of another thread that end a capture: {', '.join(by_default)}"
    facts += f"; in the relaxed mode: {', '.join(relaxed)}"
    if any(not each.startswith(NEVER_CALLED) for each in relaxed):
        raise AssertionError(facts)
    return facts


def _refused(*, relaxed: bool) -> list[str]:
    import torch

    driver, _ = the_device()
    context = ctypes.c_void_p()
    driver.call("cuCtxGetCurrent", ctypes.byref(context))
    calls = Calls(driver)
    found = []
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(driver.call, "cuCtxSetCurrent", context).result()
        if relaxed:
            mode = ctypes.c_int(RELAXED)
            other_thread.submit(driver.call, "cuThreadExchangeStreamCaptureMode", ctypes.byref(mode)).result()
        for name, make in calls.all():
            stream = torch.cuda.Stream().cuda_stream
            fault = _ends_capture(driver, stream, partial(other_thread.submit, make))
            if fault:
                found.append(f"{name} ({fault})")
                other_thread.submit(make).result()  # the next calls need what it makes
    return found


def _ends_capture(driver: Any, stream: int, submit: Callable[[], Any]) -> str:
    """What the call and the capture ended with; empty if both went well."""
    from kv_connector.memory.cuda_driver import CudaError

    faults = []
    graph = ctypes.c_void_p()
    driver.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), GLOBAL_CAPTURE)
    try:
        submit().result()
    except CudaError as fault:
        faults.append(str(fault).rsplit(" ", 1)[-1])
    try:
        driver.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
    except CudaError as fault:
        faults.append(str(fault).rsplit(" ", 1)[-1])
    return ", ".join(faults)
