"""The layer counter's word as written by kernels on a device's stream, so that CUDA graphs repeat the counting."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from kv_connector.memory.cuda_driver import CudaDriver, CudaError

BUMP = b"kv_messenger_bump"
PLACE = b"kv_messenger_place"
PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry kv_messenger_bump(.param .u64 state)
{
    .reg .pred %reached;
    .reg .u64 %own, %seen, %count, %bound;
    ld.param.u64 %own, [state];
    cvta.to.global.u64 %own, %own;
    ld.global.u64 %count, [%own];
    ld.global.u64 %bound, [%own+8];
    setp.eq.u64 %reached, %count, %bound;
    @%reached bra DONE;
    ld.global.u64 %seen, [%own+16];
    cvta.to.global.u64 %seen, %seen;
    add.u64 %count, %count, 1;
    st.global.u64 [%own], %count;
    fence.acq_rel.sys;
    st.release.sys.global.u64 [%seen], %count;
DONE:
    ret;
}
.visible .entry kv_messenger_place(.param .u64 state, .param .u64 word, .param .u64 placed, .param .u64 limit)
{
    .reg .u64 %own, %seen, %count, %bound;
    ld.param.u64 %own, [state];
    ld.param.u64 %seen, [word];
    ld.param.u64 %count, [placed];
    ld.param.u64 %bound, [limit];
    cvta.to.global.u64 %own, %own;
    st.global.u64 [%own], %count;
    st.global.u64 [%own+8], %bound;
    st.global.u64 [%own+16], %seen;
    cvta.to.global.u64 %seen, %seen;
    fence.acq_rel.sys;
    st.release.sys.global.u64 [%seen], %count;
    ret;
}
"""
"""The count, its bound and the word's address are in device memory: an increment reads nothing over the bus, and one
that was captured before the word existed uses its address later. The store to the word releases the writes of earlier
kernels in the stream (PTX ISA, memory consistency model). No atomics are needed: one stream is the only writer."""

_WORD_BYTES = 8
_STATE_BYTES = 24


class DeviceWord:
    """Writes the layer counter's word, page-locked memory that is mapped for a device, from the device's stream.

    An increment has no effect once the count has reached its bound, so replays of a graph outside of a step add
    nothing. Increments may be captured before there is a word (``aim``). Used by the engine's worker thread only. All
    work must be queued on one stream at a time: on overlapping streams increments would be lost.
    """

    def __init__(self, driver: CudaDriver, current_stream: Callable[[], int]) -> None:
        """``current_stream`` returns the stream on which the engine's kernels are currently queued."""
        self._driver = driver
        self._current_stream = current_stream
        self._aimed = ExitStack()
        with ExitStack() as undo:
            module = driver.load_module(PTX)
            undo.callback(driver.unload_module, module)
            self._bump, self._place = driver.function(module, BUMP), driver.function(module, PLACE)
            self._state = ctypes.c_uint64(driver.allocate(_STATE_BYTES))
            undo.callback(driver.free, self._state.value)
            # Zeros: the count is at its bound, so no increment writes to a word before there is one.
            driver.copy_to_device(self._state.value, bytes(_STATE_BYTES), current_stream())
            self._word, self._count, self._bound = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
            self._parameters = _addresses(self._state, self._word, self._count, self._bound)
            self._undo = undo.pop_all()

    @classmethod
    def aimed(cls, driver: CudaDriver, address: int, current_stream: Callable[[], int]) -> Self:
        """Creates an object that writes to the word at this address from the beginning; raises CudaError."""
        made = cls(driver, current_stream)
        try:
            made.aim(address)
        except CudaError:
            made.close()
            raise
        return made

    def aim(self, address: int) -> None:
        """Continues counting in the word at this address, which must exist until :meth:`let_go`; raises CudaError."""
        with ExitStack() as undo:
            self._word.value = self._driver.register_host_memory(address, _WORD_BYTES)
            undo.callback(self._driver.unregister_host_memory, address)
            count = ctypes.c_uint64.from_address(address).value
            self.place(count, count)
            self._driver.synchronize(self._current_stream())  # a step may be queued on another stream
            self._aimed = undo.pop_all()

    def let_go(self) -> None:
        """Stops writing to the word, outside of a step and before its memory is freed: captured increments do nothing.

        Returns when the device is idle, because a step's end may be queued on a stream other than this thread's. If it
        raises CudaError, the word is released too, as far as the driver allows.
        """
        try:
            self._driver.synchronize_all()
            # If a step's end failed, the bound is still above the count, and increments would still write to the word.
            self._driver.copy_to_device(self._state.value, bytes(_STATE_BYTES), self._current_stream())
        finally:
            self._aimed.close()

    def bump(self) -> None:
        """Queues an increment on the current stream; raises CudaError if the driver refuses."""
        self._driver.launch_one_thread(self._bump, self._current_stream(), self._parameters)

    def place(self, count: int, bound: int) -> None:
        """Queues setting the word to ``count`` and the limit of increments to ``bound``; raises CudaError."""
        self._count.value, self._bound.value = count, bound  # the driver copies the parameters at the launch
        self._driver.launch_one_thread(self._place, self._current_stream(), self._parameters)

    def capture(self) -> int:
        """The id of the stream's current capture, 0 for none; a graph replays what is queued during its capture."""
        return self._driver.capture_of(self._current_stream())

    def wait(self) -> None:
        """Returns when all work queued on the stream is complete; raises CudaError."""
        self._driver.synchronize(self._current_stream())

    def close(self) -> None:
        """Frees everything. All queued work must be done, and graphs captured with this word must not run again."""
        self._aimed.close()
        self._undo.close()


def check_counting(driver: CudaDriver, current_stream: Callable[[], int]) -> None:
    """Runs the counting in a private word and checks the result; raises CudaError if the device counts differently.

    Called at an engine's start, because the installed driver compiles the kernels, and this is their first run.
    """
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    seen = ctypes.c_uint64.from_buffer(memory)
    word = DeviceWord.aimed(driver, ctypes.addressof(seen), current_stream)
    try:
        word.bump()  # beyond the bound
        word.place(2, 4)
        word.bump()
        driver.synchronize(current_stream())
        counted = seen.value
    finally:
        word.close()
    if counted != 3:
        raise CudaError(
            f"the device counted to {counted}, expected 3; answers stay right, and their KV leaves later:"
            " report this with the version of NVIDIA's driver"
        )


def _addresses(*values: ctypes.c_uint64) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
