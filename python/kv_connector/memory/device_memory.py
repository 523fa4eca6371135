"""GPU memory that is shared with other processes of this host by file descriptors."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from dataclasses import dataclass, replace

from kv_connector.memory.cuda_driver import CudaDriver

_PINNED = 1
_ON_DEVICE = 1
_POSIX_DESCRIPTOR = 1
_READ_AND_WRITE = 3
_MINIMUM_GRANULARITY = 0
_GPU_DIRECT_RDMA_WITH_VMM = 110
_RELEASED = 0
"""In place of a handle."""
_FOR_SHARING = {102: "virtual memory management", 103: "memory handles as file descriptors"}
"""CUdevice_attribute without which :class:`DeviceMemories` cannot allocate, as on WSL and some virtual GPUs."""


class _AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32_handle_metadata", ctypes.c_void_p),
        ("compression_type", ctypes.c_uint8),
        ("gpu_direct_rdma_capable", ctypes.c_uint8),
        ("usage", ctypes.c_uint16),
        ("reserved", ctypes.c_uint8 * 4),
    )


class _AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int))


def lack_of_sharing(driver: CudaDriver) -> str:
    """What keeps the current context's device from sharing memory; "" if nothing does."""
    return lack_of_device(driver, driver.current_device())


def lack_of_device(driver: CudaDriver, device: int) -> str:
    """What keeps a device from sharing memory; "" if nothing does. Needs no context."""
    lacking = [name for attribute, name in _FOR_SHARING.items() if not driver.attribute(device, attribute)]
    return f"device {device} lacks {' and '.join(lacking)}" if lacking else ""


@dataclass(frozen=True, slots=True)
class DeviceRange:
    """A whole allocation, of this process or of another one, that is mapped in this process."""

    address: int
    length_bytes: int
    handle: int
    device: int


class DeviceMemories:
    """Allocates, exports and imports GPU memory. Used by one thread at a time, with a current context of the device.

    A call that fails raises CudaError, and undoes what it has begun.
    """

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._ranges: dict[int, DeviceRange] = {}

    def allocate(self, length_bytes: int, device: int) -> DeviceRange:
        """Allocates at least ``length_bytes``, mapped for the device, and usable by NICs if the device supports it."""
        prop = self._prop(device)
        granule = ctypes.c_size_t()
        self._driver.call(
            "cuMemGetAllocationGranularity", ctypes.byref(granule), ctypes.byref(prop), _MINIMUM_GRANULARITY
        )
        whole = -(-length_bytes // granule.value) * granule.value
        return self._map(self._create(whole, device), whole, device)

    def release(self) -> None:
        """Gives back the memory of all ranges, which keep their addresses; nothing may access them until ``restore``.

        A process that has imported the memory keeps it until it unmaps it.
        """
        for held in self.ranges():
            if held.handle:
                self._ranges[held.address] = replace(held, handle=_RELEASED)
                self._driver.call("cuMemUnmap", ctypes.c_uint64(held.address), ctypes.c_size_t(held.length_bytes))
                self._driver.call("cuMemRelease", ctypes.c_uint64(held.handle))

    def restore(self) -> None:
        """Allocates the memory of released ranges again, at their addresses and with any content."""
        for held in self.ranges():
            if not held.handle:
                handle = self._create(held.length_bytes, held.device)
                with ExitStack() as undo:
                    undo.callback(self._driver.call, "cuMemRelease", ctypes.c_uint64(handle))
                    self._map_at(held.address, handle, held.length_bytes, held.device, undo)
                    undo.pop_all()
                self._ranges[held.address] = replace(held, handle=handle)

    def take_in(self, descriptor: int, length_bytes: int, device: int) -> DeviceRange:
        """Maps another process's allocation of ``length_bytes``; the descriptor may be closed afterwards.

        ``device`` is the device that will access it, not necessarily the one that holds it.
        """
        handle = ctypes.c_uint64()
        self._driver.call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), _POSIX_DESCRIPTOR
        )
        return self._map(handle.value, length_bytes, device)

    def export(self, address: int) -> int:
        """A new descriptor of the allocation that begins at this address; the caller closes it."""
        descriptor = ctypes.c_int(-1)
        handle = ctypes.c_uint64(self._ranges[address].handle)
        self._driver.call(
            "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _POSIX_DESCRIPTOR, ctypes.c_uint64(0)
        )
        return descriptor.value

    def range_at(self, address: int) -> DeviceRange | None:
        """The range that begins at this address; None if there is none."""
        return self._ranges.get(address)

    def ranges(self) -> list[DeviceRange]:
        """All ranges that are allocated or mapped here."""
        return list(self._ranges.values())

    def free(self, address: int) -> None:
        """Unmaps a range that the device does not access any more. The memory exists until no process has it mapped."""
        held = self._ranges.pop(address)
        place, length = ctypes.c_uint64(address), ctypes.c_size_t(held.length_bytes)
        if held.handle:
            self._driver.call("cuMemUnmap", place, length)
        self._driver.call("cuMemAddressFree", place, length)
        if held.handle:
            self._driver.call("cuMemRelease", ctypes.c_uint64(held.handle))

    def close(self) -> None:
        """Frees all ranges."""
        for address in list(self._ranges):
            self.free(address)

    def _create(self, length_bytes: int, device: int) -> int:
        handle, prop = ctypes.c_uint64(), self._prop(device)
        self._driver.call(
            "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(length_bytes), ctypes.byref(prop), ctypes.c_uint64(0)
        )
        return handle.value

    def _prop(self, device: int) -> _AllocationProp:
        capable = ctypes.c_int()
        self._driver.call("cuDeviceGetAttribute", ctypes.byref(capable), _GPU_DIRECT_RDMA_WITH_VMM, device)
        return _AllocationProp(
            type=_PINNED,
            requested_handle_types=_POSIX_DESCRIPTOR,
            location_type=_ON_DEVICE,
            location_id=device,
            gpu_direct_rdma_capable=int(capable.value != 0),
        )

    def _map(self, handle: int, length_bytes: int, device: int) -> DeviceRange:
        place, length, nothing = ctypes.c_uint64(), ctypes.c_size_t(length_bytes), ctypes.c_uint64(0)
        with ExitStack() as undo:
            undo.callback(self._driver.call, "cuMemRelease", ctypes.c_uint64(handle))
            self._driver.call("cuMemAddressReserve", ctypes.byref(place), length, ctypes.c_size_t(0), nothing, nothing)
            undo.callback(self._driver.call, "cuMemAddressFree", place, length)
            self._map_at(place.value, handle, length_bytes, device, undo)
            undo.pop_all()
        made = DeviceRange(place.value, length_bytes, handle, device)
        self._ranges[made.address] = made
        return made

    def _map_at(self, address: int, handle: int, length_bytes: int, device: int, undo: ExitStack) -> None:
        place, length, nothing = ctypes.c_uint64(address), ctypes.c_size_t(length_bytes), ctypes.c_uint64(0)
        self._driver.call("cuMemMap", place, length, ctypes.c_size_t(0), ctypes.c_uint64(handle), nothing)
        undo.callback(self._driver.call, "cuMemUnmap", place, length)
        access = _AccessDesc(_ON_DEVICE, device, _READ_AND_WRITE)
        self._driver.call("cuMemSetAccess", place, length, ctypes.byref(access), ctypes.c_size_t(1))
