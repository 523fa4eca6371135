"""The layer counter's word where a device's stream writes to it, by kernels, so that graphs repeat the counting."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

from kv_connector.cuda_driver import CudaDriver, CudaError

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
"""The count, its bound and the word's address are kept in the device's memory: a bump reads nothing over the bus, and
one that was captured before there was a word finds the one that came. The store to the word releases what kernels
before it in the stream have written (PTX ISA, memory consistency model). No atomics: one stream is the only writer."""

_WORD_BYTES = 8
_STATE_BYTES = 24


class DeviceWord:
    """The layer counter's word as a device's stream sees it: page-locked memory of this process, mapped for the device.

    A bump adds one unless the count has reached its bound: what a graph repeats outside of a step adds nothing. Bumps
    may be captured before it is aimed at a word. The engine's worker thread only. All that is queued must go to one
    stream at a time: two that overlap lose bumps.
    """

    def __init__(self, driver: CudaDriver, current_stream: Callable[[], int]) -> None:
        """`current_stream` says on which stream the engine's kernels are queued at this moment."""
        self._driver = driver
        self._current_stream = current_stream
        self._aimed = ExitStack()
        with ExitStack() as undo:
            module = driver.load_module(PTX)
            undo.callback(driver.unload_module, module)
            self._bump, self._place = driver.function(module, BUMP), driver.function(module, PLACE)
            self._state = ctypes.c_uint64(driver.allocate(_STATE_BYTES))
            undo.callback(driver.free, self._state.value)
            # Zeros: the count is at its bound, so that no bump touches a word before there is one.
            driver.copy_to_device(self._state.value, bytes(_STATE_BYTES), current_stream())
            self._word, self._count, self._bound = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
            self._parameters = _addresses(self._state, self._word, self._count, self._bound)
            self._undo = undo.pop_all()

    @classmethod
    def aimed(cls, driver: CudaDriver, address: int, current_stream: Callable[[], int]) -> Self:
        """One that counts in the word at this address from the beginning; raises CudaError."""
        made = cls(driver, current_stream)
        try:
            made.aim(address)
        except CudaError:
            made.close()
            raise
        return made

    def aim(self, address: int) -> None:
        """Counts on from what the word there holds; raises CudaError. The word stays in place until :meth:`let_go`."""
        with ExitStack() as undo:
            self._word.value = self._driver.register_host_memory(address, _WORD_BYTES)
            undo.callback(self._driver.unregister_host_memory, address)
            count = ctypes.c_uint64.from_address(address).value
            self.place(count, count)
            self._driver.synchronize(self._current_stream())  # a step may be queued on another stream
            self._aimed = undo.pop_all()

    def let_go(self) -> None:
        """Outside of a step, before the word's memory goes: bumps that a graph repeats add nothing from there on.

        Returns when the device is at rest, since a step's end may be queued on another stream than this thread's.
        Raises CudaError; the word is let go of then too, as far as the driver lets it.
        """
        try:
            self._driver.synchronize_all()
            # A step whose end was refused has left the bound above the count: bumps would go on writing to the word.
            self._driver.copy_to_device(self._state.value, bytes(_STATE_BYTES), self._current_stream())
        finally:
            self._aimed.close()

    def bump(self) -> None:
        """Queues an addition of one behind whatever is queued already; raises CudaError when the driver refuses."""
        self._driver.launch_one_thread(self._bump, self._current_stream(), self._parameters)

    def place(self, count: int, bound: int) -> None:
        """Queues that the word is ``count`` from there on, and bumps end at ``bound``; raises CudaError."""
        self._count.value, self._bound.value = count, bound  # the driver copies parameters when it takes the launch
        self._driver.launch_one_thread(self._place, self._current_stream(), self._parameters)

    def capture(self) -> int:
        """Which capture the stream is in, 0 for none: what is queued now runs each time that its graph does."""
        return self._driver.capture_of(self._current_stream())

    def wait(self) -> None:
        """Returns when all is over that the stream has queued; raises CudaError."""
        self._driver.synchronize(self._current_stream())

    def close(self) -> None:
        """No graph that was captured with this word is launched any more, and all that was queued is over."""
        self._aimed.close()
        self._undo.close()


def check_counting(driver: CudaDriver, current_stream: Callable[[], int]) -> None:
    """Counts in a word that nothing watches, and waits for it; raises CudaError where a device counts otherwise.

    For the start of an engine: the kernels are compiled by the driver that is installed, and have their first run here.
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
            f"the device counted to {counted}, expected 3: report this with the driver's version, and set gpu to 'off'"
        )


def _addresses(*values: ctypes.c_uint64) -> ctypes.Array[Any]:
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
