"""Copies of scattered pages by the driver, alone and beside a matrix product; what one more process costs."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gpu_check.counter_checks import median_us, the_device

PAGES = 512
"""As many as KV Messenger gives the driver in one call."""
TURNS = 20
KIBIBYTES = (2, 16, 64)
DIRECTIONS = ("to host", "from host", "on the device")
PRODUCT = 8192
ORDER_OF_STREAM = 1
"""CU_MEMCPY_SRC_ACCESS_ORDER_STREAM."""


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Pages:
    """Two areas of pages, every other page of each in use, so that no two copies are adjacent."""

    def __init__(self, page_bytes: int, source: Any, target: Any) -> None:
        self.length_bytes = PAGES * page_bytes
        step = 2 * page_bytes
        self._targets = (ctypes.c_uint64 * PAGES)(*(target.data_ptr() + step * i for i in range(PAGES)))
        self._sources = (ctypes.c_uint64 * PAGES)(*(source.data_ptr() + step * (PAGES - 1 - i) for i in range(PAGES)))
        self._lengths = (ctypes.c_size_t * PAGES)(*[page_bytes] * PAGES)
        self._attributes = _Attributes(order=ORDER_OF_STREAM)
        self._first = ctypes.c_size_t(0)
        self._held = source, target

    def runs(self) -> list[tuple[int, int, int]]:
        """(target address, source address, bytes) of each page."""
        return list(zip(self._targets, self._sources, self._lengths, strict=True))

    def copy(self, driver: Any, stream: int) -> None:
        count, one = ctypes.c_size_t(PAGES), ctypes.c_size_t(1)
        attributes = ctypes.byref(self._attributes), ctypes.byref(self._first), one
        arrays = self._targets, self._sources, self._lengths
        driver.call("cuMemcpyBatchAsync_v2", *arrays, count, *attributes, ctypes.c_void_p(stream))


def scattered() -> str:
    """Gigabytes a second of 512 pages in one call, for each size and direction; then beside a product of matrices."""
    return "; ".join(_rates())


def _rates() -> Iterator[str]:
    import torch

    driver, _ = the_device()
    stream = torch.cuda.Stream()
    factors = [torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2)]

    def product() -> None:
        torch.mm(*factors)

    alone_us = median_us(product, TURNS)
    for kibibytes in KIBIBYTES:
        for direction in DIRECTIONS:
            pages = Pages(kibibytes << 10, *areas(kibibytes << 10, direction))

            def copy(pages: Pages = pages) -> None:
                pages.copy(driver, stream.cuda_stream)

            rate = pages.length_bytes / median_us(copy, TURNS, stream) / 1e3
            beside_us = _beside_us(product, copy)
            yield f"{kibibytes} KiB {direction} {rate:.1f} GB/s, product {beside_us / alone_us:.2f} of its time alone"


def areas(page_bytes: int, direction: str) -> tuple[Any, Any]:
    """Source and target, of twice the pages' length."""
    import torch

    def area(on_device: bool) -> Any:
        where = {"device": "cuda"} if on_device else {"pin_memory": True}
        return torch.empty(2 * PAGES * page_bytes, dtype=torch.uint8, **where)

    return area(direction != "from host"), area(direction != "to host")


def _beside_us(product: Callable[[], None], copy: Callable[[], None]) -> float:
    """The product's median while copies are queued behind each other."""
    import torch

    for _ in range(3 * TURNS):
        copy()
    took_us = median_us(product, TURNS)
    torch.cuda.synchronize()
    return took_us


CONTEXT_ALONE = """
import ctypes, sys
from kv_connector.memory.cuda_driver import CudaDriver
driver = CudaDriver()
driver.initialise()
context = ctypes.c_void_p()
driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
print("made", flush=True)
sys.stdin.read()
"""


def context_cost() -> str:
    """How much of the device's memory is gone while one more process has a context there and nothing else."""
    import torch

    the_device()
    before, _ = torch.cuda.mem_get_info(0)
    process = subprocess.Popen(
        [sys.executable, "-c", CONTEXT_ALONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if process.stdout.readline() != "made\n":
        raise AssertionError("the process made no context")
    held, _ = torch.cuda.mem_get_info(0)
    process.stdin.close()
    process.wait()
    return f"{(before - held) / 2**20:.0f} MiB of the device for the context of one more process"
