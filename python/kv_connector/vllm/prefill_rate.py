"""How fast this engine computes prompts, measured by its own steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

MEASURED_TOKENS_MIN = 64
"""Steps of fewer tokens are decode steps, most likely."""
SHARE_OF_NEWEST = 0.3
STEPS_IN_FLIGHT_MAX = 64
"""More than an engine has scheduled at once; steps whose end is never reported do not pile up."""


class PrefillRate:
    """Used by the engine core's thread only."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._in_flight: deque[tuple[float, int]] = deque(maxlen=STEPS_IN_FLIGHT_MAX)
        """(when it was scheduled, its tokens) of each step whose output has not come."""
        self._last_end_seconds = 0.0
        self._seconds_per_token: float | None = None

    def step_begins(self, tokens: int) -> None:
        """A step that computes this many tokens is scheduled."""
        self._in_flight.append((self._now_seconds(), tokens))

    def step_over(self) -> None:
        """The output of the first step in flight has come. It was computed after the one before."""
        if not self._in_flight:
            return
        scheduled_seconds, tokens = self._in_flight.popleft()
        now_seconds = self._now_seconds()
        begun_seconds = max(scheduled_seconds, self._last_end_seconds)
        self._last_end_seconds = now_seconds
        if tokens >= MEASURED_TOKENS_MIN:
            measured = (now_seconds - begun_seconds) / tokens
            known = self._seconds_per_token
            self._seconds_per_token = measured if known is None else known + SHARE_OF_NEWEST * (measured - known)

    def seconds_of(self, tokens: int) -> float | None:
        """How long this engine would compute that many tokens; None before anything was measured."""
        return None if self._seconds_per_token is None else tokens * self._seconds_per_token
