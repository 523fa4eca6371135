"""The layer counter's word where a GPU does not count layers: this process writes it, once the GPU's work is done."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable

from kv_connector.memory.cuda_driver import CudaError


def wait_for_stream() -> None:
    """Returns when all work is complete that is queued on torch's current stream of this thread; raises CudaError."""
    try:
        importlib.import_module("torch").cuda.current_stream().synchronize()
    except RuntimeError as fault:
        raise CudaError(f"the work of torch's current stream failed: {fault}") from fault


class WaitedWord:
    """Writes the layer counter's word from the engine's worker thread, behind all work of its stream.

    For passes that are reported when they are over: it counts no layer of a pass that runs, and adds nothing to graphs.
    """

    def __init__(self, address: int, wait_for_device: Callable[[], None]) -> None:
        """``wait_for_device`` returns when the work that the engine has queued is complete."""
        self._word = ctypes.c_uint64.from_address(address)
        self._wait_for_device = wait_for_device

    def bump(self) -> None:
        """Does nothing: layers are released by the end of their pass."""

    def place(self, count: int, bound: int) -> None:  # noqa: ARG002
        """Sets the word to ``count`` when the work queued before is complete; there are no increments to limit."""
        self._wait_for_device()
        self._word.value = count

    def capture(self) -> int:
        """0: no capture has increments."""
        return 0

    def wait(self) -> None:
        """Returns when all that is queued now is complete."""
        self._wait_for_device()
