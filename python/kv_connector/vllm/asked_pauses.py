"""What an engine's user asks of its pause while it rests for weights: that counts once they are loaded.

Needs no import of vLLM. Used by the engine core's thread only.
"""

from __future__ import annotations

import functools
from typing import Any


class AskedPause:
    """Notes each state that the scheduler is given, from the construction until the end."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._before = vars(scheduler).get("set_pause_state")
        self._asked: Any = None
        set_state = scheduler.set_pause_state

        @functools.wraps(set_state)
        def set_pause_state(state: Any) -> None:
            self._asked = state
            set_state(state)

        scheduler.set_pause_state = set_pause_state

    def end(self, otherwise: Any) -> None:
        """Gives the scheduler the state that was asked for last; ``otherwise`` if none was."""
        if self._before is None:
            vars(self._scheduler).pop("set_pause_state", None)
        else:
            self._scheduler.set_pause_state = self._before
        self._scheduler.set_pause_state(otherwise if self._asked is None else self._asked)
