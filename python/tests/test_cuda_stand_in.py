"""What the stand-in for NVIDIA's driver refuses as a driver does: a test breaks each rule, and is refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from cuda_stand_in import Device, library_or_skip

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.device_memory import DeviceMemories, _AllocationProp

GRANULE = 2 << 20
PAGE_BYTES = 4096
POSIX_DESCRIPTOR = 1
ON_DEVICE = 1
DMA_BUF = 1
LAZY_PEER_ACCESS = 1
VMM, POSIX_HANDLES, RDMA_WITH_VMM = 102, 103, 110
DEVICE_ORDINAL = 9
NOT_INITIALIZED = 3


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(library_or_skip())


@pytest.fixture
def memories(device: Device) -> Iterator[DeviceMemories]:
    made = DeviceMemories(device.driver)
    yield made
    made.close()


@pytest.fixture
def apart(device: Device) -> Iterator[None]:
    """Devices without peer access."""
    device.stand_in.standInApart(1)
    yield
    device.stand_in.standInApart(0)


def owner_of(device: Device, address: int) -> int:
    ordinal = ctypes.c_uint64()
    device.driver.call("cuPointerGetAttribute", ctypes.byref(ordinal), DEVICE_ORDINAL, ctypes.c_uint64(address))
    return ordinal.value


def taken_in(memories: DeviceMemories, theirs: DeviceMemories, owner: int, reaching: int) -> int:
    """The address of another process's allocation."""
    descriptor = theirs.export(theirs.allocate(GRANULE, owner).address)
    try:
        return memories.take_in(descriptor, GRANULE, reaching).address
    finally:
        os.close(descriptor)


@pytest.fixture
def theirs(device: Device) -> Iterator[DeviceMemories]:
    made = DeviceMemories(device.driver)
    yield made
    made.close()


def test_imported_memory_lies_on_its_owners_device(
    device: Device, memories: DeviceMemories, theirs: DeviceMemories
) -> None:
    assert owner_of(device, taken_in(memories, theirs, owner=1, reaching=0)) == 1


def test_imported_memory_is_not_exported_to_another_process(memories: DeviceMemories, theirs: DeviceMemories) -> None:
    address = taken_in(memories, theirs, owner=0, reaching=0)
    with pytest.raises(CudaError, match="cuMemExportToShareableHandle failed with CUDA_ERROR_INVALID_VALUE"):
        memories.export(address)


def exported_for_hardware(device: Device, address: int) -> int:
    descriptor = ctypes.c_int(-1)
    place, length, flags = ctypes.c_uint64(address), ctypes.c_size_t(GRANULE), ctypes.c_uint64(0)
    device.driver.call("cuMemGetHandleForAddressRange", ctypes.byref(descriptor), place, length, DMA_BUF, flags)
    return descriptor.value


def test_imported_memory_is_exported_for_hardware_as_an_h100_exports_it(
    device: Device, memories: DeviceMemories, theirs: DeviceMemories
) -> None:
    os.close(exported_for_hardware(device, taken_in(memories, theirs, owner=0, reaching=0)))


@pytest.mark.parametrize("attribute", [VMM, POSIX_HANDLES])
def test_a_device_gives_no_memory_by_handles_that_it_does_not_have(device: Device, attribute: int) -> None:
    prop = _AllocationProp(type=1, requested_handle_types=POSIX_DESCRIPTOR, location_type=ON_DEVICE)
    assert refusal_of_memory(device, attribute, prop) == "CUDA_ERROR_NOT_SUPPORTED"


def test_a_device_gives_no_memory_for_nics_that_it_does_not_have(device: Device) -> None:
    prop = _AllocationProp(type=1, location_type=ON_DEVICE, gpu_direct_rdma_capable=1)
    assert refusal_of_memory(device, RDMA_WITH_VMM, prop) == "CUDA_ERROR_NOT_SUPPORTED"


def refusal_of_memory(device: Device, lacking: int, prop: _AllocationProp) -> str:
    """What the driver says to it with a device that lacks an attribute, once it has given it to one that has it."""
    length, flags = ctypes.c_size_t(GRANULE), ctypes.c_uint64(0)
    handle = ctypes.c_uint64()
    device.driver.call("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(prop), flags)
    device.driver.call("cuMemRelease", handle)
    device.stand_in.standInAttribute(lacking, 0)
    try:
        with pytest.raises(CudaError) as refused:
            device.driver.call("cuMemCreate", ctypes.byref(handle), length, ctypes.byref(prop), flags)
    finally:
        device.stand_in.standInAttribute(lacking, 1)
    return str(refused.value).rpartition(" ")[2]


@pytest.mark.usefixtures("apart")
def test_devices_apart_do_not_reach_each_others_memory(memories: DeviceMemories, theirs: DeviceMemories) -> None:
    taken_in(memories, theirs, owner=0, reaching=0)
    with pytest.raises(CudaError, match="cuMemSetAccess failed with CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"):
        taken_in(memories, theirs, owner=1, reaching=0)


@pytest.mark.usefixtures("apart")
def test_devices_apart_say_so(device: Device) -> None:
    assert not device.driver.can_access_peer(0, 1)


def test_devices_reach_each_other_where_nothing_is_between_them(
    device: Device, memories: DeviceMemories, theirs: DeviceMemories
) -> None:
    assert device.driver.can_access_peer(0, 1)
    taken_in(memories, theirs, owner=1, reaching=0)


ANOTHER_PROCESS = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
context, address, handle = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_uint8 * 64)()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), int(sys.argv[2]))
driver.cuCtxSetCurrent(context)
driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 21))
driver.cuIpcGetMemHandle(ctypes.byref(handle), address)
print(bytes(handle).hex(), flush=True)
sys.stdin.read()
"""


class _IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


@contextmanager
def allocated_by_another_process(owner: int) -> Iterator[_IpcHandle]:
    command = [sys.executable, "-c", ANOTHER_PROCESS, library_or_skip(), str(owner)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield _IpcHandle.from_buffer_copy(bytes.fromhex(process.stdout.readline()))
        process.stdin.close()


def opened(device: Device, handle: _IpcHandle) -> int:
    address, lazily = ctypes.c_uint64(), ctypes.c_uint(LAZY_PEER_ACCESS)
    device.driver.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, lazily)
    return address.value


def test_devices_apart_do_not_open_each_others_memory_of_cudamalloc(device: Device) -> None:
    with allocated_by_another_process(owner=1) as handle:
        device.stand_in.standInApart(1)
        try:
            with pytest.raises(CudaError, match="cuIpcOpenMemHandle_v2 failed with CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"):
                opened(device, handle)
        finally:
            device.stand_in.standInApart(0)
        address = opened(device, handle)
        assert owner_of(device, address) == 1
        device.driver.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))


def test_a_device_that_another_process_has_for_itself_has_no_context_here(device: Device) -> None:
    context = ctypes.c_void_p()
    device.stand_in.standInOccupied(1)
    try:
        with pytest.raises(CudaError, match="CUDA_ERROR_DEVICE_UNAVAILABLE"):
            device.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    finally:
        device.stand_in.standInOccupied(-1)
    assert device.stand_in.standInRetained(1) == 0


def test_memory_goes_with_the_last_user_of_its_context(device: Device) -> None:
    context, address, popped = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
    held = device.stand_in.standInHeld()
    for _ in range(2):
        device.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    device.driver.call("cuCtxPushCurrent_v2", context)
    device.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(GRANULE))
    device.driver.call("cuCtxPopCurrent_v2", ctypes.byref(popped))
    device.driver.call("cuDevicePrimaryCtxRelease_v2", 1)
    assert device.stand_in.standInHeld() > held
    device.driver.call("cuDevicePrimaryCtxRelease_v2", 1)
    assert device.stand_in.standInHeld() == held
    with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_VALUE"):
        device.driver.call("cuMemFree_v2", address)


def test_host_memory_is_not_registered_twice_by_any_of_its_bytes(device: Device) -> None:
    memory = (ctypes.c_char * (4 * PAGE_BYTES))()
    begin = ctypes.addressof(memory)
    inside, whole = ctypes.c_void_p(begin + PAGE_BYTES), ctypes.c_void_p(begin)
    device.driver.call("cuMemHostRegister_v2", inside, ctypes.c_size_t(PAGE_BYTES), 0)
    with pytest.raises(CudaError, match="CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"):
        device.driver.call("cuMemHostRegister_v2", whole, ctypes.c_size_t(4 * PAGE_BYTES), 0)
    device.driver.call("cuMemHostUnregister", inside)
    device.driver.call("cuMemHostRegister_v2", whole, ctypes.c_size_t(4 * PAGE_BYTES), 0)
    device.driver.call("cuMemHostUnregister", whole)


@pytest.mark.parametrize("call", ["cuInit", "cuDeviceGetCount"])
def test_a_forked_process_has_no_driver(device: Device, call: str) -> None:
    child = os.fork()
    if child == 0:
        given = ctypes.byref(ctypes.c_int()) if call == "cuDeviceGetCount" else 0
        os._exit(getattr(device.stand_in, call)(given))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NOT_INITIALIZED


def legacy(device: Device) -> Callable[[], None]:
    """Gives memory of cudaMalloc back."""
    address = ctypes.c_uint64()
    device.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(GRANULE))
    return lambda: device.driver.call("cuMemFree_v2", address)


def mapped(device: Device) -> Callable[[], None]:
    memories = DeviceMemories(device.driver)
    memories.allocate(GRANULE, 0)
    return memories.close


def page_locked(device: Device) -> Callable[[], None]:
    address = ctypes.c_void_p()
    device.driver.call("cuMemHostAlloc", ctypes.byref(address), ctypes.c_size_t(PAGE_BYTES), 0)
    return lambda: device.driver.call("cuMemFreeHost", address)


def registered(device: Device) -> Callable[[], None]:
    memory = (ctypes.c_char * PAGE_BYTES)()
    device.driver.call("cuMemHostRegister_v2", memory, ctypes.c_size_t(PAGE_BYTES), 0)
    return lambda: device.driver.call("cuMemHostUnregister", memory)


def to_be_page_locked(device: Device) -> Callable[[], None]:
    return lambda: page_locked(device)()


WAITING_CALLS = {
    "cuMemFree_v2": legacy,
    "cuMemUnmap": mapped,
    "cuMemFreeHost": page_locked,
    "cuMemHostUnregister": registered,
    "cuMemHostAlloc": to_be_page_locked,
}


@pytest.mark.parametrize("call", WAITING_CALLS)
def test_a_call_that_waits_returns_behind_what_streams_were_given(device: Device, call: str) -> None:
    give_back = WAITING_CALLS[call](device)
    calls = device.stand_in.standInCallCount(call.encode())
    order = []

    def work() -> None:
        """Is not over before the call has begun."""
        while device.stand_in.standInCallCount(call.encode()) == calls:
            pass
        order.append("work")

    device.stand_in.standInWaitingCalls(1)
    try:
        device.queue(work)
        give_back()
        order.append("given back")
    finally:
        device.stand_in.standInWaitingCalls(0)
    device.finish()
    assert order == ["work", "given back"]


@pytest.mark.parametrize("call", WAITING_CALLS)
def test_calls_return_at_once_where_they_are_not_to_wait(device: Device, call: str) -> None:
    give_back = WAITING_CALLS[call](device)
    held = device.hold()
    give_back()
    held.set()
    device.finish()
