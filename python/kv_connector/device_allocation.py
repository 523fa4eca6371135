"""KV memory of a GPU that other processes of this host can be given: torch's pool takes it from ``cuMemCreate``.

vLLM asks the connector for a context in which it allocates the KV cache. Inside it, torch's caching allocator asks a
pair of C functions for memory, which are Python's, by ctypes: nothing is compiled. What is allocated outside, and on
other threads, comes from torch as ever. The memory lives as long as the process: the engine never frees its KV cache.
"""

from __future__ import annotations

import ctypes
import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self

from kv_connector.cuda_driver import CudaDriver
from kv_connector.device_memory import DeviceMemories

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


class DeviceAllocation:
    """A context for the KV cache's allocation. The worker's thread only, on which the engine's context is current."""

    def __init__(self, torch: Any, driver: CudaDriver, logger: logging.Logger) -> None:
        self._torch = torch
        self._logger = logger
        self.memories = DeviceMemories(driver)
        # Torch keeps their addresses, so they live as long as this object, which lives as long as the connector.
        self._functions = _ALLOCATE(self._allocate), _FREE(self._free)
        self._pool: Any = None
        self._entered = ExitStack()

    def __enter__(self) -> Self:
        """Torch's allocations of this thread come from here; raises what torch raises where it has no such pools."""
        if self._pool is None:
            addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]
            self._pool = self._torch.cuda.MemPool(self._torch._C._cuda_customAllocator(*addresses))
        self._entered.enter_context(self._torch.cuda.use_mem_pool(self._pool))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """They come from where they came from before."""
        self._entered.close()

    def handle_kind_of(self, address: int, length_bytes: int) -> Literal["none", "posixFd"]:
        """As what memory here can be passed on: an allocation can as a whole only, so it must begin one."""
        held = self.memories.range_at(address)
        return "posixFd" if held is not None and length_bytes <= held.length_bytes else "none"

    def _allocate(self, length_bytes: int, device: int, _stream: int | None) -> int:
        """0 is torch's word for: there is no memory. No exception may leave a function that C calls."""
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
