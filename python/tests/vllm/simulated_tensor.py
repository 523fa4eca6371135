"""As much of a tensor as the connector asks of a KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class SimulatedTensor:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    storage: SimpleNamespace
    dtype: str = "torch.float32"
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def data_ptr(self) -> int:
        return self.address

    def element_size(self) -> int:
        return 4

    def untyped_storage(self) -> SimpleNamespace:
        return self.storage
