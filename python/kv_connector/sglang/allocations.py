"""Memory of this process that other processes of this host can map."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a descriptor maps from offset 0; tensors lie in it."""

    address: int
    length_bytes: int
    memfd: int

    def holds(self, address: int, length_bytes: int) -> bool:
        """Whether so many bytes from there on lie in it."""
        return self.address <= address and address + length_bytes <= self.address + self.length_bytes


ALLOCATIONS: list[Allocation] = []
"""Those whose tensors live: pools and metadata do as long as the process."""
