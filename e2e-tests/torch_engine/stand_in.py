"""A stream of the stand-in for NVIDIA's driver, on which the connector counts while torch computes on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kv_connector.memory.cuda_driver import CudaDriver

GLOBAL_CAPTURE = 0
NON_BLOCKING = 1


class StandInStream:
    """It runs what is queued later, on a thread of its own; a test delays it by the variable STAND_IN_OP_DELAY_NS.

    So steps are told, and ended, while the counter is behind, and what is captured is counted by launches.
    """

    def __init__(self, library: str) -> None:
        self.driver = CudaDriver(library)
        self.driver.call("cuInit", 0)
        context, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.driver.call("cuCtxSetCurrent", context)
        self.driver.call("cuStreamCreate", ctypes.byref(self._stream), NON_BLOCKING)

    def handle(self) -> int:
        return self._stream.value or 0

    def finish(self) -> None:
        """Returns when all that is queued has run."""
        self.driver.synchronize(self.handle())

    def capture(self, queue: Callable[[], None]) -> Callable[[], None]:
        """What launches the graph of what is queued."""
        graph, made = ctypes.c_void_p(), ctypes.c_void_p()
        self.driver.call("cuStreamBeginCapture_v2", self._stream, GLOBAL_CAPTURE)
        queue()
        self.driver.call("cuStreamEndCapture", self._stream, ctypes.byref(graph))
        self.driver.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        return lambda: self.driver.call("cuGraphLaunch", made, self._stream)
