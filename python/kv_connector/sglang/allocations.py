"""Memory of this process that other processes of this host can map."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a descriptor maps from offset 0; tensors lie in it."""

    address: int
    length_bytes: int
    memfd: int
    """-1 where a descriptor is made when it is asked for, or cannot be."""
    device: int | None = None
    """The GPU whose memory it is; None = it is the host's."""

    def holds(self, address: int, length_bytes: int) -> bool:
        """Whether so many bytes from there on lie in it."""
        return self.address <= address and address + length_bytes <= self.address + self.length_bytes


ALLOCATIONS: list[Allocation] = []
"""Those whose tensors live: pools and metadata do as long as the process."""
