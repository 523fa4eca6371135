"""Counts layers on a GPU, with the engine's driver and on the stream on which it computes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from kv_connector.memory.cuda_driver import CudaDriver
from kv_connector.memory.device_word import DeviceWord, check_counting


@dataclass(frozen=True, slots=True)
class DeviceCounting:
    """Creates counter words of a device whose counting is checked. The worker's thread only, with a current context."""

    driver: CudaDriver
    current_stream: Callable[[], int]

    @classmethod
    def checked(cls) -> Self:
        """Uses the current stream of torch in this process; raises CudaError if the device does not count correctly."""
        cuda = importlib.import_module("torch").cuda
        return cls.on(CudaDriver(), lambda: int(cuda.current_stream().cuda_stream))

    @classmethod
    def on(cls, driver: CudaDriver, current_stream: Callable[[], int]) -> Self:
        """Uses the given driver and stream; raises CudaError like :meth:`checked`."""
        check_counting(driver, current_stream)
        return cls(driver, current_stream)

    def word_for_graphs(self) -> DeviceWord:
        """A word whose increments can be captured before the messenger's counter exists."""
        return DeviceWord(self.driver, self.current_stream)

    def word(self, address: int) -> DeviceWord:
        """A word that writes to the counter at this address."""
        return DeviceWord.aimed(self.driver, address, self.current_stream)
