"""What an engine still holds when it is to come to rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What was still held when the time limit was reached."""

    of_requests: Mapping[str, int]
    """Transfers of this rank's own requests."""
    of_messenger: Mapping[str, int]
    """Everything that the messenger holds, including what peers wait for."""

    def __str__(self) -> str:
        held = {**self.of_messenger, **self.of_requests}
        return ", ".join(f"{count} {name}" for name, count in held.items()) or "nothing"
