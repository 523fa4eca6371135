"""Short waits in steps that compute nothing.

vLLM steps without a pause as long as a transfer is open. The workers of an idle engine with several ranks then spin on
all their cores. Where engines share cores, this takes CPU time from the very messengers, local and remote, that they
wait for. Waiting here costs nothing: such a step only asks what has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kv_connector.exceptions import MessengerError

WAIT_MAX_SECONDS = 0.005
"""The longest time for which a new request may wait for an empty step to end."""
WAIT_SHARE = 1 / 8
"""The wait as a fraction of the time since the last news, so that the end of a short transfer is hardly delayed."""


class EmptySteps:
    """Tracks how long steps have been empty, and waits in them. Used by the worker's main thread only."""

    def __init__(
        self, now_seconds: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now_seconds = now_seconds
        self._sleep = sleep
        self._since_seconds = now_seconds()

    def interrupted(self) -> None:
        """Restarts the measurement: a step computes, or there is news."""
        self._since_seconds = self._now_seconds()

    def wait(self, look: Callable[[], bool], pause: Callable[[float], object]) -> None:
        """Returns when ``look`` returns True, or the step has waited long enough.

        ``pause`` is called with the rest of the wait, in seconds, and returns early if ``look`` may find something. If
        it raises MessengerError, as that of a closed messenger does, the rest of the wait is a sleep.
        """
        now_seconds = self._now_seconds()
        deadline_seconds = now_seconds + min(WAIT_MAX_SECONDS, WAIT_SHARE * (now_seconds - self._since_seconds))
        while (left_seconds := deadline_seconds - self._now_seconds()) > 0:
            try:
                pause(left_seconds)
            except MessengerError:
                self._sleep(left_seconds)
            if look():
                return
