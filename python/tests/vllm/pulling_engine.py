"""An engine that decides on pulls by a clock that the test moves, and by a speed of its own that the test gives."""

from __future__ import annotations

import itertools

from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine

HELD_TOKENS = 2 * BLOCK_TOKENS
PROMPT_TOKENS = 3 * BLOCK_TOKENS + 16


class PullingEngine:
    """It measures no steps."""

    def __init__(self, engine: EngineMaker, seconds_per_token: float) -> None:
        self.engine: SimulatedEngine = engine("kv_both", recompute=True)
        self.now_seconds = 100.0
        self.count = itertools.count(1)
        self.pulls = self.engine.own_scheduler._half._pulls
        for each in (self.pulls, self.pulls._prices, self.pulls._prices.transfers):
            each._now_seconds = lambda: self.now_seconds
        self.pulls.rate.step_begins = lambda *_: None
        self.pulls.rate._seconds_per_token = seconds_per_token
