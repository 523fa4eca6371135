"""Memory of this process that other processes of this host can map."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that holds tensors, and that a descriptor maps from offset 0."""

    address: int
    length_bytes: int
    memfd: int
    """-1 if the descriptor is exported on demand, or cannot be."""
    device: int | None = None
    """The GPU that has the memory; None = host memory."""

    def holds(self, address: int, length_bytes: int) -> bool:
        """Whether it contains the whole range."""
        return self.address <= address and address + length_bytes <= self.address + self.length_bytes


ALLOCATIONS: list[Allocation] = []
"""The allocations of existing tensors; pools and metadata exist until the process ends."""
