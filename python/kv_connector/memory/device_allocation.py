"""GPU memory for KV that other processes of this host can import: torch's pool allocates it with ``cuMemCreate``.

The engine allocates the KV cache inside a context of this module. In it, torch's caching allocator calls two C
functions, which ctypes makes from Python functions, so nothing is compiled. Allocations outside of the context and on
other threads are torch's own. The memory is never freed: the engine keeps its KV cache until the process ends.

So does a pool that has been used. Torch calls the free function when it destroys one, and Python's last collection
takes pool and functions as one cycle, in no promised order: the call would find a function that is cleared already.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self

from kv_connector.memory.cuda_driver import CudaDriver
from kv_connector.memory.device_memory import DeviceMemories, lack_of_sharing

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


def allocation_to_share(torch: Any, driver: CudaDriver, logger: logging.Logger) -> DeviceAllocation | None:
    """None, with a line in the log, where the device cannot share memory: torch then allocates as it always does."""
    if lacking := lack_of_sharing(driver):
        logger.warning("KV memory is left to torch, and cuda does not reach it: %s", lacking)
        return None
    return DeviceAllocation(torch, driver, logger)


class DeviceAllocation:
    """A context for allocating the KV cache. Used by the worker's thread, on which the engine's context is current."""

    def __init__(self, torch: Any, driver: CudaDriver, logger: logging.Logger) -> None:
        self._torch = torch
        self._logger = logger
        self.memories = DeviceMemories(driver)
        # Torch keeps their addresses, so this object must keep them alive.
        self._functions = _ALLOCATE(self._allocate), _FREE(self._free)
        self._pool: Any = None
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        """Redirects torch's allocations on this thread; raises torch's own error if it has no such pools."""
        if self._pool is None:
            addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
            self._pool = self._torch.cuda.MemPool(self._torch._C._cuda_customAllocator(*addresses))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # also Python's last collection leaves it and the pool
        self._entered.enter_context(self._torch.cuda.use_mem_pool(self._pool))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the redirection."""
        self._entered.close()

    def handle_kind_of(self, address: int, length_bytes: int) -> Literal["none", "posixFd"]:
        """The kind of handle by which this memory can be exported; "none" unless an allocation begins here."""
        held = self.memories.range_at(address)
        return "posixFd" if held is not None and length_bytes <= held.length_bytes else "none"

    def _allocate(self, length_bytes: int, device: int, _stream: int | None) -> int:
        """Torch's allocation function; 0 means out of memory. No exception may leave a function that C calls."""
        try:
            return self.memories.allocate(length_bytes, device).address
        except Exception:
            self._logger.exception("%d bytes of device %d were not allocated", length_bytes, device)
            return 0

    def _free(self, address: int | None, _length_bytes: int, _device: int, _stream: int | None) -> None:
        try:
            if address:
                self.memories.free(address)
        except Exception:
            self._logger.exception("memory of a device was not freed")
