"""Memory of a device that other processes are given, against the stand-in: nothing here has run on a GPU."""

from __future__ import annotations

import ctypes
import logging
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cuda_stand_in import Device, library_or_skip

from kv_connector import HandoverError
from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.device_memory import DeviceMemories, _AccessDesc, _AllocationProp
from kv_connector.memory.handover import Follower, Lead, meeting_place

LOGGER = logging.getLogger("test")
RANKS = 8
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


def test_should_give_memory_back_and_take_other_memory_at_the_same_address(
    device: Device, memories: DeviceMemories
) -> None:
    held = [memories.allocate(GRANULE, 0), memories.allocate(3 * GRANULE, 1)]
    used = device.stand_in.standInUsedBytes
    used.restype = ctypes.c_size_t
    before = used(0), used(1)
    bytes_at(device, held[0].address, GRANULE)[:5] = b"pages"
    for _ in range(2):
        memories.release()
        assert (used(0), used(1)) == (before[0] - GRANULE, before[1] - 3 * GRANULE)
        find = device.stand_in.standInBytes
        assert find(ctypes.c_uint64(held[0].address), ctypes.c_size_t(GRANULE)) is None
        memories.release()
        memories.restore()
        memories.restore()
        assert (used(0), used(1)) == before
        assert [each.address for each in memories.ranges()] == [each.address for each in held]
        assert bytes_at(device, held[0].address, GRANULE)[:5] != b"pages"
        bytes_at(device, held[0].address, GRANULE)[:5] = b"pages"
    descriptor = memories.export(held[0].address)
    os.close(descriptor)


def test_should_leave_released_memory_to_a_process_that_has_it_mapped(device: Device, memories: DeviceMemories) -> None:
    made = memories.allocate(GRANULE, 0)
    descriptor = memories.export(made.address)
    theirs = DeviceMemories(device.driver)
    taken = theirs.take_in(descriptor, made.length_bytes, 0)
    os.close(descriptor)
    memories.release()
    memories.restore()
    bytes_at(device, taken.address, GRANULE)[:5] = b"later"
    assert bytes_at(device, made.address, GRANULE)[:5] != b"later", "it reaches the memory of after the sleep"
    theirs.close()


@pytest.mark.parametrize("call", ["cuMemCreate", "cuMemMap", "cuMemSetAccess"])
def test_should_try_again_what_could_not_be_restored(device: Device, memories: DeviceMemories, call: str) -> None:
    made = memories.allocate(GRANULE, 0)
    memories.release()
    device.stand_in.standInFail(call.encode(), 1, OUT_OF_MEMORY)
    with pytest.raises(CudaError, match=f"{call} failed with CUDA_ERROR_OUT_OF_MEMORY"):
        memories.restore()
    memories.restore()
    bytes_at(device, made.address, GRANULE)[:5] = b"pages"


def test_should_free_what_is_released(memories: DeviceMemories) -> None:
    memories.allocate(GRANULE, 0)
    memories.release()
    memories.close()


def test_should_say_that_a_descriptor_is_none_of_a_device(memories: DeviceMemories) -> None:
    wrong = os.memfd_create("wrong")
    with pytest.raises(CudaError, match="cuMemImportFromShareableHandle failed"):
        memories.take_in(wrong, GRANULE, 0)
    os.close(wrong)


# ---- between ranks


def geometry(tp_rank: int, address: int, length_bytes: int, handle_kind: str = "posixFd") -> Any:
    memory = {"kind": "cuda", "device": 0, "address": address, "lengthBytes": length_bytes, "handleKind": handle_kind}
    return {"model": "tiny@0", "ranks": [{"tpRank": tp_rank, "ppRank": 0, "memories": [memory], "layers": []}]}


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_should_hand_the_allocations_of_eight_ranks_to_their_lead(device: Device, memories: DeviceMemories) -> None:
    """The ranks are threads here, each with allocations of its own."""
    place = meeting_place(str(uuid.uuid4()), 0)
    before = open_descriptors()
    ranks = [DeviceMemories(device.driver) for _ in range(RANKS)]
    held = [rank.allocate(GRANULE * (1 + index % 2), 0) for index, rank in enumerate(ranks)]
    kv = [geometry(index, each.address, each.length_bytes - 100) for index, each in enumerate(held)]
    lead = Lead(place, [(0, index) for index in range(1, RANKS)], LOGGER, memories)

    def hand_over(index: int) -> Follower:
        device.use()
        return Follower.hand_over(place, kv[index], LOGGER, device_memories=ranks[index])

    with ThreadPoolExecutor(RANKS) as pool:
        waiting = [pool.submit(hand_over, index) for index in range(1, RANKS)]
        whole: Any = lead.gather(kv[0], 30.0)
        for each in waiting:
            each.result().close()
    assert whole["ranks"][0] == kv[0]["ranks"][0]
    for index, rank in enumerate(whole["ranks"][1:], 1):
        (mapped,) = rank["memories"]
        assert mapped.keys() == kv[index]["ranks"][0]["memories"][0].keys()
        assert mapped["address"] != held[index].address
        bytes_at(device, held[index].address, GRANULE)[:4] = b"kv %d" % index
        assert bytes_at(device, mapped["address"], GRANULE)[:4] == b"kv %d" % index
    lead.close()
    assert len(memories.ranges()) == RANKS - 1
    lead.unmap()
    assert memories.ranges() == []
    for rank in ranks:
        rank.close()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("lack", "sentence"),
    [
        ("memory", r"memory of tensor-parallel rank 1 cannot be mapped for the lead rank's GPU 0 .*cuMemMap failed"),
        (
            "peer access",
            r"memory of tensor-parallel rank 1 cannot be mapped for the lead rank's GPU 0 .*PEER_ACCESS_UNSUPPORTED\):"
            " set messenger_per to 'rank'",
        ),
        ("a driver", "rank 1 handed over memory of a GPU, which the lead rank has no way to map"),
    ],
)
def test_should_say_that_a_lead_cannot_map_it(
    request: pytest.FixtureRequest, device: Device, memories: DeviceMemories, lack: str, sentence: str
) -> None:
    place = meeting_place(str(uuid.uuid4()), 0)
    theirs = DeviceMemories(device.driver)
    held = theirs.allocate(GRANULE, 1)
    own = geometry(0, memories.allocate(GRANULE, 0).address, GRANULE)
    if lack == "memory":
        device.stand_in.standInFail(b"cuMemMap", 1, OUT_OF_MEMORY)
    if lack == "peer access":
        device.stand_in.standInApart(1)
        request.addfinalizer(lambda: device.stand_in.standInApart(0))
    lead = Lead(place, [(0, 1)], LOGGER, memories if lack != "a driver" else None)

    def hand_over() -> Follower:
        device.use()
        return Follower.hand_over(place, geometry(1, held.address, held.length_bytes), LOGGER, device_memories=theirs)

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(hand_over)
        with pytest.raises(HandoverError, match=sentence):
            lead.gather(own, 30.0)
        with pytest.raises(HandoverError, match=sentence):
            waiting.result()
    theirs.close()


def test_should_miss_memory_that_is_none_of_its_allocations(memories: DeviceMemories) -> None:
    place = meeting_place(str(uuid.uuid4()), 0)
    lead = Lead(place, [(0, 1)], LOGGER, memories)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Follower.hand_over, place, geometry(1, 4096, GRANULE, "none"), LOGGER)
        with pytest.raises(HandoverError, match=r"handed over 0 descriptors, expected 1, .*'rank'"):
            lead.gather(geometry(0, 4096, GRANULE), 30.0)
        with pytest.raises(HandoverError, match="handed over 0 descriptors"):
            waiting.result()
