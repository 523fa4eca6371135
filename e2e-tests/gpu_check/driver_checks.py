"""What the driver answers to the questions that KV Messenger asks or depends on, as one table."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpu_check.counter_checks import the_device

ATTRIBUTES = {
    41: "unified addressing",
    100: "host registration of any address",
    102: "virtual memory management",
    103: "memory handles as file descriptors",
    110: "GPUDirect RDMA with virtual memory management",
    116: "GPUDirect RDMA",
    117: "flushes of GPUDirect RDMA writes",
    118: "order of GPUDirect RDMA writes",
    124: "dma-buf",
}
"""CUdevice_attribute of cuda.h 13.0."""
FILE_DESCRIPTOR = 1
DMA_BUF = 1
DEVICE_ORDINAL, ALLOWED_HANDLE_TYPES = 9, 14
"""CUpointer_attribute."""
GRANULE = 2 << 20


def answers() -> str:
    """Every answer is a fact and none is a failure: what KV Messenger makes of it is checked by the other checks."""
    return "; ".join([f"driver {the_device()[0].version()}", *_attributes(), *_exports()])


def _attributes() -> Iterator[str]:
    driver, _ = the_device()
    for number, name in ATTRIBUTES.items():
        yield f"{name} ({number}) {driver.attribute(0, number)}"


def _exports() -> Iterator[str]:
    """Of memory by torch's allocator, by cuMemCreate, and imported from a descriptor."""
    import torch
    from kv_connector.memory.device_memory import DeviceMemories

    driver, _ = the_device()
    plain = torch.zeros(GRANULE, dtype=torch.uint8, device="cuda")
    memories = DeviceMemories(driver)
    own = memories.allocate(GRANULE, 0)
    descriptor = memories.export(own.address)
    other = DeviceMemories(driver)
    taken = other.take_in(descriptor, own.length_bytes, 0)
    os.close(descriptor)
    try:
        for name, address in (("torch's", plain.data_ptr()), ("created", own.address), ("imported", taken.address)):
            yield f"{name} memory: dma-buf {_result(partial(_dma_buf, driver, address))}"
            yield f"device {_result(partial(_pointer, driver, DEVICE_ORDINAL, address))}"
            yield f"handle types {_result(partial(_pointer, driver, ALLOWED_HANDLE_TYPES, address))}"
        yield f"imported memory exported again: {_result(lambda: _closed(other.export(taken.address)))}"
    finally:
        other.close()
        memories.close()


def _result(ask: Callable[[], object]) -> str:
    from kv_connector.memory.cuda_driver import CudaError

    try:
        return str(ask())
    except CudaError as refused:
        return f"refused ({refused})"


def _dma_buf(driver: Any, address: int) -> str:
    descriptor = ctypes.c_int(-1)
    place, length = ctypes.c_uint64(address), ctypes.c_size_t(GRANULE)
    driver.call("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), place, length, DMA_BUF, ctypes.c_uint64(0))
    return _closed(descriptor.value)


def _closed(descriptor: int) -> str:
    os.close(descriptor)
    return "exported"


def _pointer(driver: Any, attribute: int, address: int) -> int:
    value = ctypes.c_uint64()
    driver.call("cuPointerGetAttribute", ctypes.byref(value), attribute, ctypes.c_uint64(address))
    return value.value & 0xFFFFFFFF
