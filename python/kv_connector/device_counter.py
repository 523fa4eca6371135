"""How an engine on a GPU counts layers: where its driver is, and on which stream it computes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from kv_connector.cuda_driver import CudaDriver
from kv_connector.device_word import DeviceWord, check_counting


@dataclass(frozen=True, slots=True)
class DeviceCounting:
    """Checked when it is made. The worker's thread only, on which the engine's context is current."""

    driver: CudaDriver
    current_stream: Callable[[], int]

    @classmethod
    def checked(cls) -> Self:
        """That of the torch in this process; raises CudaError where the device does not count as it should."""
        cuda = importlib.import_module("torch").cuda
        return cls.on(CudaDriver(), lambda: int(cuda.current_stream().cuda_stream))

    @classmethod
    def on(cls, driver: CudaDriver, current_stream: Callable[[], int]) -> Self:
        """That of a driver; raises CudaError like :meth:`checked`."""
        check_counting(driver, current_stream)
        return cls(driver, current_stream)

    def word_for_graphs(self) -> DeviceWord:
        """One whose bumps can be captured before there is a word to aim it at."""
        return DeviceWord(self.driver, self.current_stream)

    def word(self, address: int) -> DeviceWord:
        """The word as the device writes it, from now on."""
        return DeviceWord.aimed(self.driver, address, self.current_stream)
