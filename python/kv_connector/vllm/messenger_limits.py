"""The limits within which the messenger ends every transfer. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

GRANT_WAIT_AT_REST_SECONDS = 10.0
"""How long an engine that comes to rest for other weights holds a computed prompt for a decoder that has not asked for
it: routers send both legs within less, and no request begins before that."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The messenger's own limits, which bound how long an end may take."""

    fetch_seconds: float
    silence_seconds: float

    @property
    def unheard_seconds(self) -> float:
        """Time after which the messenger has ended every fetch, by its limit or by the loss of its peer."""
        return self.fetch_seconds + 2 * self.silence_seconds
