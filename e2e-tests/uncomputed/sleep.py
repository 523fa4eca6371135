"""In place of vLLM's allocator for sleep mode, whose compiled part is not here: KV memory goes and comes back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch

KV = "kv_cache"


def stand_in() -> None:
    """For the worker and for the mechanism by which it sleeps."""
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.platforms import current_platform

    current_platform.is_cumem_allocator_available = lambda: True
    allocator = Allocator()
    CuMemAllocator.get_instance = staticmethod(lambda: allocator)


class Allocator:
    """Of what vLLM allocates with tags, KV alone is its own; weights and the rest are torch's, and stay."""

    def __init__(self) -> None:
        self._kv: Any = None

    def use_memory_pool(self, tag: str | None = None) -> AbstractContextManager[Any]:
        if tag != KV:
            return nullcontext()
        # Imported by the engine that it is tested in, not by the process that engines are forked from.
        from kv_connector.memory.cuda_driver import CudaDriver
        from kv_connector.memory.device_allocation import DeviceAllocation

        kv = self._kv = DeviceAllocation(torch, CudaDriver(), logging.getLogger("vllm.uncomputed"))
        return cast("AbstractContextManager[Any]", kv)

    def sleep(self, offload_tags: Sequence[str] | str | None = None) -> None:
        if self._kv is not None:
            self._kv.memories.release()

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        if self._kv is not None and (tags is None or KV in tags):
            self._kv.memories.restore()

    def discard(self, tags: Sequence[str] | str) -> None:
        if KV in tags:
            self.sleep()

    def get_current_usage(self) -> int:
        return 0
