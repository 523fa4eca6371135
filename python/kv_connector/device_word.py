"""Adds to the layer counter in the order of a device's stream, by a kernel, so that CUDA graphs repeat it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kv_connector.cuda_driver import CudaDriver, CudaError

KERNEL = b"kv_messenger_bump"
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry kv_messenger_bump(.param .u64 word, .param .u64 added)
{
    .reg .u64 %address, %count, %more;
    ld.param.u64 %address, [word];
    ld.param.u64 %more, [added];
    cvta.to.global.u64 %address, %address;
    ld.relaxed.sys.global.u64 %count, [%address];
    add.u64 %count, %count, %more;
    fence.acq_rel.sys;
    st.release.sys.global.u64 [%address], %count;
    ret;
}
"""
"""A load and a store in place of an atomic addition: one stream is the only writer, and a device's atomics on host
memory need a bus that has them. The store releases what kernels before it in the stream have written (PTX ISA, memory
consistency model)."""

_LENGTH_BYTES = 8


class DeviceWord:
    """The layer counter's word as a device's stream sees it: page-locked memory of this process, mapped for the device.

    The engine's worker thread only. All additions must go to one stream at a time: two that overlap lose one.
    """

    def __init__(self, driver: CudaDriver, address: int, current_stream: Callable[[], int]) -> None:
        """`current_stream` says on which stream the engine's kernels are queued at this moment."""
        self._driver = driver
        self._address = address
        self._current_stream = current_stream
        self._module, self._function = driver.load_kernel(PTX, KERNEL)
        try:
            self._word = ctypes.c_uint64(driver.register_host_memory(address, _LENGTH_BYTES))
        except CudaError:
            driver.call("cuModuleUnload", self._module)
            raise
        self._added = ctypes.c_uint64()
        self._parameters = (ctypes.c_void_p * 2)(ctypes.addressof(self._word), ctypes.addressof(self._added))
        self._closed = False

    def add(self, count: int) -> None:
        """Queues the addition behind whatever is queued already; raises CudaError when the driver refuses."""
        self._added.value = count  # the driver copies parameters when it takes the launch
        self._driver.launch_one_thread(self._function, self._current_stream(), self._parameters)

    def close(self) -> None:
        """No graph that was captured with this word is launched any more, and all that was queued is over."""
        if not self._closed:
            self._closed = True
            self._driver.unregister_host_memory(self._address)
            self._driver.call("cuModuleUnload", self._module)
