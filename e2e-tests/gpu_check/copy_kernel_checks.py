"""The kernel that copies small runs beside the copy engine: the same bytes, and how fast each of them is."""

from __future__ import annotations

import ctypes
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gpu_check.copy_checks import DIRECTIONS, PAGES, TURNS, Pages, areas
from gpu_check.counter_checks import median_us, the_device

SOURCE = "io/kvmessenger/transfer/device/copy_runs.ptx"
NAME = b"kv_messenger_copy_runs"
BLOCKS, THREADS = 128, 128
"""As KV Messenger launches it (CopyKernel)."""
PAGE_BYTES = (1021, 2 << 10, 4 << 10, 16 << 10, 32 << 10)
"""The first one is not aligned: it goes byte by byte."""


class CopyKernel:
    """The kernel as it is packed for the messenger, compiled by the driver, with one table."""

    def __init__(self, driver: Any, pages: Pages) -> None:
        import torch

        self._driver = driver
        self._module = driver.load_module(source())
        self._function = driver.function(self._module, NAME)
        table = torch.tensor(pages.runs(), dtype=torch.int64)
        self._table = table.pin_memory()
        self._values = ctypes.c_uint64(self._table.data_ptr()), ctypes.c_uint64(PAGES)
        self._parameters = (ctypes.c_void_p * 2)(*map(ctypes.addressof, self._values))

    def launch(self, stream: int) -> None:
        shape = BLOCKS, 1, 1, THREADS, 1, 1, 0
        self._driver.call("cuLaunchKernel", self._function, *shape, ctypes.c_void_p(stream), self._parameters, None)

    def close(self) -> None:
        self._driver.unload_module(self._module)


def source() -> bytes:
    """The kernel's PTX, ended by a zero, from the jar in the wheel."""
    import kv_connector

    jar = Path(kv_connector.__file__).parent / "_jar" / "kv-messenger.jar"
    with zipfile.ZipFile(jar) as packed:
        return packed.read(SOURCE) + b"\0"


def beside_copy_engine() -> str:
    """For each size and direction: both write the same bytes and nothing between the pages; GB/s of each."""
    return "; ".join(_compared())


def _compared() -> Iterator[str]:
    import torch

    driver, _ = the_device()
    stream = torch.cuda.Stream()
    for page_bytes in PAGE_BYTES:
        for direction in DIRECTIONS:
            from_area, to_area = areas(page_bytes, direction)
            from_area.copy_(torch.randint(1, 256, (len(from_area),), dtype=torch.uint8))
            pages = Pages(page_bytes, from_area, to_area)
            kernel = CopyKernel(driver, pages)
            engine_copies = partial(pages.copy, driver, stream.cuda_stream)
            kernel_copies = partial(kernel.launch, stream.cuda_stream)
            by_engine, by_kernel = _written(to_area, engine_copies), _written(to_area, kernel_copies)
            if not by_engine.equal(by_kernel) or not by_engine.any():
                raise AssertionError(
                    f"{page_bytes} bytes {direction}: the kernel and the copy engine wrote other bytes"
                )
            kernel_us, engine_us = (median_us(each, TURNS, stream) for each in (kernel_copies, engine_copies))
            kernel.close()
            rates = [pages.length_bytes / took_us / 1e3 for took_us in (kernel_us, engine_us)]
            yield f"{page_bytes} bytes {direction} kernel {rates[0]:.1f}, copy engine {rates[1]:.1f} GB/s"


def _written(area: Any, copy: Callable[[], None]) -> Any:
    """What the area has after a copy into zeros."""
    import torch

    area.zero_()
    torch.cuda.synchronize()
    copy()
    torch.cuda.synchronize()
    return area.cpu().clone()
