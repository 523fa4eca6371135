"""Page numbers that are copied from the device while the scheduler goes on.

SGLang keeps the numbers of a request's pages on its device, in a table that the scheduler's stream reads in order,
behind the pass in flight. What needs them waits here until they are on the host; the scheduler does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class DeviceReads:
    """What waits for copies of page numbers, in the order of its arrival. Used by the scheduler's thread only."""

    def __init__(self, *, on_device: bool) -> None:
        self.on_device = on_device
        """Whether page numbers have to be copied; an engine that computes on a CPU has them on the host."""
        self._waiting: deque[Callable[[], bool]] = deque()

    def add(self, take: Callable[[], bool]) -> None:
        """Has ``take`` called until it returns True: False means that its numbers are not on the host yet."""
        self._waiting.append(take)
        self.poll()

    def poll(self) -> None:
        """Takes what is on the host, and nothing before what came earlier; never waits."""
        while self._waiting and self._waiting[0]():
            self._waiting.popleft()


class NumberCopies:
    """Copies of page numbers to the host, on the scheduler's stream. Used by the scheduler's thread only."""

    def __init__(self, device_module: Any) -> None:
        """``device_module``: torch's of the device, such as ``torch.cuda``."""
        self._device_module = device_module
        self._event: Any = None

    def add(self, numbers: Any) -> Any:
        """Queues the copy of a tensor on the device; returns one of the same shape and type on the host."""
        import torch

        copied = torch.empty(numbers.shape, dtype=numbers.dtype, device="cpu", pin_memory=True)
        return copied.copy_(numbers, non_blocking=True)

    def end(self) -> None:
        """Called once, when all copies are queued."""
        self._event = self._device_module.Event()
        self._event.record(self._device_module.current_stream())

    def are_over(self) -> bool:
        """Whether all copies may be read."""
        return bool(self._event.query())
