"""A GPU's KV memory from ``cuMemCreate`` through torch's pools, against the stand-in: nothing here has run on a GPU.

Torch's own pools need a GPU. What stands in their place calls the two C functions as torch's allocator does.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib.util
import logging
import os
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_stand_in import Device, library_or_skip

from kv_connector.memory.device_allocation import DeviceAllocation

GRANULE = 2 << 20
KV_BYTES = 3 * GRANULE
OUT_OF_MEMORY = 2
STREAM = 0
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)


@functools.cache
def the_device() -> Device:
    return Device(library_or_skip())


class Pools:
    """As much of torch as the allocation touches."""

    def __init__(self) -> None:
        self.entered = 0
        self._C = SimpleNamespace(_cuda_customAllocator=lambda allocate, free: (ALLOCATE(allocate), FREE(free)))
        self.cuda = SimpleNamespace(MemPool=lambda allocator: allocator, use_mem_pool=self._use)

    @contextlib.contextmanager
    def _use(self, pool: Any) -> Iterator[None]:
        self.pool = pool
        self.entered += 1
        yield
        self.entered -= 1

    def allocate(self, length_bytes: int, device: int = 0) -> int | None:
        assert self.entered == 1
        return self.pool[0](length_bytes, device, STREAM)  # type: ignore[no-any-return]

    def free(self, address: int) -> None:
        self.pool[1](address, 0, 0, STREAM)


@pytest.fixture
def torch() -> Pools:
    return Pools()


@pytest.fixture
def allocation(torch: Pools) -> Iterator[DeviceAllocation]:
    made = DeviceAllocation(torch, the_device().driver, logging.getLogger("test"))
    yield made
    made.memories.close()
    assert the_device().stand_in.standInHeld() == 0


def test_should_give_torch_memory_that_can_be_passed_on(torch: Pools, allocation: DeviceAllocation) -> None:
    with allocation:
        address = torch.allocate(KV_BYTES)
    assert torch.entered == 0
    assert address is not None
    assert allocation.handle_kind_of(address, KV_BYTES - 5) == "posixFd"
    descriptor = allocation.memories.export(address)
    assert os.fstat(descriptor).st_size == KV_BYTES
    os.close(descriptor)


def test_should_not_say_that_other_memory_can_be(torch: Pools, allocation: DeviceAllocation) -> None:
    with allocation:
        address = torch.allocate(KV_BYTES)
    assert address is not None
    assert allocation.handle_kind_of(address, KV_BYTES + 1) == "none"
    assert allocation.handle_kind_of(address + GRANULE, GRANULE) == "none"
    assert allocation.handle_kind_of(0x1000, GRANULE) == "none"


def test_should_free_what_torch_gives_back(torch: Pools, allocation: DeviceAllocation) -> None:
    with allocation:
        address = torch.allocate(KV_BYTES)
        assert address is not None
        torch.free(address)
    assert the_device().stand_in.standInHeld() == 0


def test_should_report_to_torch_that_there_is_no_memory(
    torch: Pools, allocation: DeviceAllocation, caplog: pytest.LogCaptureFixture
) -> None:
    the_device().stand_in.standInFail(b"cuMemCreate", 1, OUT_OF_MEMORY)
    with allocation:
        assert torch.allocate(KV_BYTES, 1) is None
    assert f"{KV_BYTES} bytes of device 1 were not allocated" in caplog.text


def test_should_leave_the_pool_when_the_allocation_fails(torch: Pools, allocation: DeviceAllocation) -> None:
    with pytest.raises(RuntimeError, match="no room"), allocation:
        raise RuntimeError("no room")
    assert torch.entered == 0


def test_should_outlive_all_that_names_it_once_torch_has_its_functions(torch: Pools) -> None:
    def weakly(entered: bool) -> weakref.ref[DeviceAllocation]:
        made = DeviceAllocation(torch, the_device().driver, logging.getLogger("test"))
        if entered:
            with made:
                pass
        return weakref.ref(made)

    used, unused = weakly(True), weakly(False)
    gc.collect()
    assert (used() is not None, unused() is None) == (True, True)


def test_should_be_taken_by_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch comes with the engine: see the suite that has vLLM")
    real = importlib.import_module("torch")
    functions = ALLOCATE(lambda *_: 0), FREE(lambda *_: None)
    made = real._C._cuda_customAllocator(*(ctypes.cast(each, ctypes.c_void_p).value for each in functions))
    assert made is not None
