"""How fast this engine computes prompts, measured by its own steps."""

from __future__ import annotations

import time
from collections.abc import Callable

MEASURED_TOKENS_MIN = 64
"""Steps of fewer tokens are decode steps, most likely."""
SHARE_OF_NEWEST = 0.3


class PrefillRate:
    """Used by the engine core's thread only."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._begun_seconds = 0.0
        self._tokens = 0
        self._seconds_per_token: float | None = None

    def step_begins(self, tokens: int) -> None:
        """A step computes this many tokens; the one before is over, or is queued before it."""
        now_seconds = self._now_seconds()
        if self._tokens >= MEASURED_TOKENS_MIN:
            measured = (now_seconds - self._begun_seconds) / self._tokens
            known = self._seconds_per_token
            self._seconds_per_token = measured if known is None else known + SHARE_OF_NEWEST * (measured - known)
        self._begun_seconds, self._tokens = now_seconds, tokens

    def seconds_of(self, tokens: int) -> float | None:
        """How long this engine would compute that many tokens; None before anything was measured."""
        return None if self._seconds_per_token is None else tokens * self._seconds_per_token
