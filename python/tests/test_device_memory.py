"""Memory of a device that other processes are given, against the stand-in: nothing here has run on a GPU."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
from cuda_stand_in import Device, library_or_skip

from kv_connector.cuda_driver import CudaError
from kv_connector.device_memory import DeviceMemories, _AccessDesc, _AllocationProp

GRANULE = 2 << 20
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(library_or_skip())


@pytest.fixture
def memories(device: Device) -> Iterator[DeviceMemories]:
    made = DeviceMemories(device.driver)
    yield made
    made.close()
    assert device.stand_in.standInHeld() == 0


def bytes_at(device: Device, address: int, length: int) -> ctypes.Array[ctypes.c_char]:
    find = device.stand_in.standInBytes
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_uint64, ctypes.c_size_t]
    found = find(address, length)
    assert found, "not mapped"
    return (ctypes.c_char * length).from_address(found)


def test_should_lay_structures_out_as_the_driver_does() -> None:
    assert (ctypes.sizeof(_AllocationProp), ctypes.sizeof(_AccessDesc)) == (32, 12)
    assert (_AllocationProp.location_id.offset, _AllocationProp.gpu_direct_rdma_capable.offset) == (12, 25)


def test_should_allocate_whole_granules(memories: DeviceMemories) -> None:
    made = memories.allocate(GRANULE + 1, 0)
    assert made.length_bytes == 2 * GRANULE
    assert made.address % GRANULE == 0
    assert memories.range_at(made.address) == made
    assert memories.range_at(made.address + GRANULE) is None


def test_should_give_another_mapping_the_same_bytes(device: Device, memories: DeviceMemories) -> None:
    made = memories.allocate(GRANULE, 0)
    descriptor = memories.export(made.address)
    theirs = DeviceMemories(device.driver)
    taken = theirs.take_in(descriptor, made.length_bytes, 1)
    os.close(descriptor)
    assert taken.address != made.address

    bytes_at(device, made.address, GRANULE)[:5] = b"pages"
    memories.free(made.address)  # what was given lives on
    assert bytes_at(device, taken.address, GRANULE)[:5] == b"pages"
    theirs.close()


@pytest.mark.parametrize(
    "call", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemGetAllocationGranularity"]
)
def test_should_leave_nothing_behind_when_it_fails(device: Device, memories: DeviceMemories, call: str) -> None:
    device.stand_in.standInFail(call.encode(), 1, OUT_OF_MEMORY)
    with pytest.raises(CudaError, match=f"{call} failed with CUDA_ERROR_OUT_OF_MEMORY"):
        memories.allocate(GRANULE, 0)
    assert device.stand_in.standInHeld() == 0


def test_should_say_that_a_descriptor_is_none_of_a_device(memories: DeviceMemories) -> None:
    wrong = os.memfd_create("wrong")
    with pytest.raises(CudaError, match="cuMemImportFromShareableHandle failed"):
        memories.take_in(wrong, GRANULE, 0)
    os.close(wrong)
