"""The limits within which the messenger ends every transfer. A plain value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The messenger's own limits, which bound how long an end may take."""

    fetch_seconds: float
    silence_seconds: float

    @property
    def unheard_seconds(self) -> float:
        """Time after which the messenger has ended every fetch, by its limit or by the loss of its peer."""
        return self.fetch_seconds + 2 * self.silence_seconds
