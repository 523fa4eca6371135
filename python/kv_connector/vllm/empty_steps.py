"""What a worker does in steps that compute nothing: it waits a little for the messenger.

vLLM steps without a pause as long as a transfer is open. With several ranks the workers of an idle engine then spin on
every core they have, and where engines share cores they take those of the messengers, theirs and the peer's, from which
they wait to hear. Waiting here costs nothing: the step has nothing to do but to ask what has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_MAX_SECONDS = 0.005
"""So long at most a request that has just come waits for an empty step to end."""
WAIT_SHARE = 1 / 8
"""The wait is this part of the time that has passed without news: short transfers are noticed as fast as before."""
LOOK_INTERVAL_SECONDS = 0.001


class EmptySteps:
    """Knows since when steps were empty, and waits in them. Used by the worker's main thread only."""

    def __init__(
        self, now_seconds: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._now_seconds = now_seconds
        self._sleep = sleep
        self._since_seconds = now_seconds()

    def interrupted(self) -> None:
        """A step computes, or there is news: what follows is waited for anew."""
        self._since_seconds = self._now_seconds()

    def wait(self, look: Callable[[], bool]) -> None:
        """Returns when ``look`` has found something, or the step has waited long enough."""
        now_seconds = self._now_seconds()
        deadline_seconds = now_seconds + min(WAIT_MAX_SECONDS, WAIT_SHARE * (now_seconds - self._since_seconds))
        while (left_seconds := deadline_seconds - self._now_seconds()) > 0:
            self._sleep(min(left_seconds, LOOK_INTERVAL_SECONDS))
            if look():
                return
