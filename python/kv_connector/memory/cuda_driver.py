"""NVIDIA's driver through ctypes: the few calls that the Python side makes, without torch.

The driver is optional: nothing is loaded at import, and a machine without it has no device memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

from kv_connector.exceptions import KvConnectorError

LIBRARY = "libcuda.so.1"

_PORTABLE_AND_MAPPED = 1 | 2
"""CU_MEMHOSTREGISTER_PORTABLE, valid in every context, and _DEVICEMAP, accessible to kernels."""

_CAPTURING = 1
"""CU_STREAM_CAPTURE_STATUS_ACTIVE."""

_PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 33, 34, 50
"""CUdevice_attribute."""

_NAME_BYTES = 256


class CudaError(KvConnectorError):
    """A driver call failed, or there is no driver."""


def no_driver(fault: CudaError) -> bool:
    """Whether the library does not exist; one that exists and cannot be loaded is a different error."""
    cause = fault.__cause__
    return isinstance(cause, OSError) and f"{LIBRARY}: cannot open shared object file: No such file" in str(cause)


class CudaDriver:
    """Calls of libcuda.so.1. Each raises CudaError, with the call and the driver's name of the error, if it fails.

    Used by any thread on which a context of the engine is current. It creates no context.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as fault:
            raise CudaError(f"NVIDIA's driver cannot be loaded ({fault}): install it, or compute on the CPU") from fault

    def version(self) -> int:
        """The CUDA version in the driver's encoding: 12080 is 12.8. Callable before :meth:`initialise`."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def initialise(self) -> None:
        """Initialises the driver, once per process if no engine has done it; creates no context."""
        self.call("cuInit", 0)

    def device_count(self) -> int:
        """The number of devices that this process sees."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value

    def current_device(self) -> int:
        """The device of the calling thread's context."""
        device = ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(device))
        return device.value

    def device_name(self, ordinal: int) -> str:
        """The device's product name."""
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self.call("cuDeviceGetName", name, _NAME_BYTES, self._device(ordinal))
        return name.value.decode(errors="replace")

    def attribute(self, ordinal: int, attribute: int) -> int:
        """A CUdevice_attribute of a device."""
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device(ordinal))
        return value.value

    def pci_address(self, ordinal: int) -> str:
        """Where the device is on the bus, as in /sys/bus/pci/devices: ``0000:06:00.0``."""
        domain, bus, slot = (self.attribute(ordinal, each) for each in (_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE))
        return f"{domain:04x}:{bus:02x}:{slot:02x}.0"

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        """Whether a device's kernels and copies can access another device's memory."""
        can = ctypes.c_int()
        self.call("cuDeviceCanAccessPeer", ctypes.byref(can), self._device(ordinal), self._device(peer))
        return can.value != 0

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns a result code; raises CudaError unless it is success."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(f"{name} failed with {self._word_for(code)}")

    def _word_for(self, code: int) -> str:
        word = ctypes.c_char_p()
        self._library.cuGetErrorName(code, ctypes.byref(word))
        return word.value.decode() if word.value else f"error {code}"

    def register_host_memory(self, address: int, length_bytes: int) -> int:
        """Page-locks memory of this process and maps it for the device; returns its address there."""
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(address), ctypes.c_size_t(length_bytes), _PORTABLE_AND_MAPPED)
        seen = ctypes.c_uint64()
        try:
            self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(seen), ctypes.c_void_p(address), 0)
        except CudaError:
            self.unregister_host_memory(address)
            raise
        return seen.value

    def unregister_host_memory(self, address: int) -> None:
        """Undoes :meth:`register_host_memory`; nothing on the device may access the memory any more."""
        self.call("cuMemHostUnregister", ctypes.c_void_p(address))

    def allocate(self, length_bytes: int) -> int:
        """Allocates memory of the current context's device; returns its device address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length_bytes))
        return address.value

    def free(self, address: int) -> None:
        """Undoes :meth:`allocate`."""
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def copy_to_device(self, address: int, content: bytes, stream: int) -> None:
        """Copies to device memory, after the work queued on the stream; returns when the copy is complete."""
        length_bytes = ctypes.c_size_t(len(content))
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), content, length_bytes, ctypes.c_void_p(stream))
        self.synchronize(stream)

    def load_module(self, ptx: bytes) -> ctypes.c_void_p:
        """Loads a module of kernels, which the driver compiles."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ptx)
        return module

    def unload_module(self, module: ctypes.c_void_p) -> None:
        """Undoes :meth:`load_module`; none of its kernels may be queued or captured any more."""
        self.call("cuModuleUnload", module)

    def function(self, module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
        """The handle of a module's kernel."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function

    def capture_of(self, stream: int) -> int:
        """The unique id of the stream's current capture; 0 if the stream is not being captured."""
        status, number = ctypes.c_int(), ctypes.c_uint64()
        self.call(
            "cuStreamGetCaptureInfo_v2",
            *(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None),
        )
        return number.value if status.value == _CAPTURING else 0

    def synchronize(self, stream: int) -> None:
        """Returns when all work queued on the stream is complete."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def synchronize_all(self) -> None:
        """Returns when all work queued in the current context, on any stream, is complete."""
        self.call("cuCtxSynchronize")

    def launch_one_thread(self, function: ctypes.c_void_p, stream: int, parameters: ctypes.Array[Any]) -> None:
        """Launches a kernel with a single thread on a stream; during a capture, adds it to the graph."""
        shape = (1,) * 6
        self.call("cuLaunchKernel", function, *shape, 0, ctypes.c_void_p(stream), parameters, None)
