"""How fast this engine computes prompts, measured by its own steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

MEASURED_TOKENS_MIN = 64
"""A step has a time of its own, of which those of fewer tokens say more than of the tokens."""
SHARE_OF_NEWEST = 0.3
STEPS_IN_FLIGHT_MAX = 64
"""More than an engine has scheduled at once: those of workers that report nothing do not pile up."""


class Step(Protocol):
    """A step of an engine that is scheduled."""

    step: int
    reports_end: bool
    """Set where its end is to be reported."""


class PrefillRate:
    """Used by one thread."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._in_flight: dict[int, tuple[float, int]] = {}
        """(when it was scheduled, its tokens) of each step that is measured and whose output has not come."""
        self._last_end_seconds = 0.0
        self._seconds_per_token: float | None = None

    def step_begins(self, meta: Step, tokens: int) -> None:
        """A step that computes this many tokens of prompts is scheduled."""
        if tokens >= MEASURED_TOKENS_MIN and len(self._in_flight) < STEPS_IN_FLIGHT_MAX:
            self._in_flight[meta.step] = self._now_seconds(), tokens
            meta.reports_end = True

    def step_over(self, step: int) -> None:
        """The output of a step has come; it was computed after those before it. Without output a step is forgotten."""
        now_seconds, measured = self._now_seconds(), self._in_flight.get(step)
        self._in_flight = {later: begun for later, begun in self._in_flight.items() if later > step}
        begun_seconds, self._last_end_seconds = self._last_end_seconds, now_seconds
        if measured is not None:
            scheduled_seconds, tokens = measured
            newest = (now_seconds - max(scheduled_seconds, begun_seconds)) / tokens
            known = self._seconds_per_token
            self._seconds_per_token = newest if known is None else known + SHARE_OF_NEWEST * (newest - known)

    def seconds_of(self, tokens: int) -> float | None:
        """How long this engine would compute that many tokens; None before anything was measured."""
        return None if self._seconds_per_token is None else tokens * self._seconds_per_token
