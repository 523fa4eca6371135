"""What a worker does in steps that compute nothing: it waits a little for the messenger.

vLLM steps without a pause as long as a transfer is open. With several ranks the workers of an idle engine then spin on
every core they have, and where engines share cores they take those of the messengers, theirs and the peer's, from which
they wait to hear. Waiting here costs nothing: the step has nothing to do but to ask what has arrived.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kv_connector.exceptions import MessengerError

WAIT_MAX_SECONDS = 0.005
"""So long at most a request that has just come waits for an empty step to end."""
WAIT_SHARE = 1 / 8
"""The wait is this part of the time that has passed without news: short transfers are noticed as fast as before."""


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

    def wait(self, look: Callable[[], bool], pause: Callable[[float], object]) -> None:
        """Returns when ``look`` has found something, or the step has waited long enough.

        ``pause`` is given what is left of the wait in seconds, and ends early where ``look`` may find something. Where
        it fails, as that of a closed messenger does, the wait ends by the clock.
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
