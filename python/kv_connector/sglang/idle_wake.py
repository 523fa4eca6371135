"""Wakes a scheduler that sleeps while it is idle (``--sleep-on-idle``) when its messenger has an event.

SGLang's idle scheduler waits for its own sockets, up to a second, and a question of another engine comes by none of
them. So a descriptor is added to what it waits for, which a thread makes readable.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from typing import Any, Protocol

WAIT_SECONDS = 1.0
"""How long the thread waits at a time; then it looks whether it is to end."""


class Awaited(Protocol):
    """A messenger whose events can be waited for."""

    def wait(self, limit_seconds: float) -> None:
        """Blocks until there are events to poll, or until the limit."""


class IdleWake:
    """One scheduler's. The thread waits; all else is called by the scheduler's thread."""

    def __init__(self, poller: Any, messenger: Awaited) -> None:
        """``poller`` is the scheduler's, from ZeroMQ."""
        self._poller = poller
        self._messenger = messenger
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._polled = threading.Event()
        self._closed = False
        self._leaves = itertools.count(1)
        poller.register(self._descriptor, 1)  # POLLIN
        self._thread = threading.Thread(target=self._run, name="kv-messenger-idle-wake", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, scheduler: Any, messenger: Awaited) -> IdleWake | None:
        """None for a scheduler that does not sleep, or that waits for no descriptors."""
        poller = getattr(getattr(scheduler, "idle_sleeper", None), "poller", None)
        return cls(poller, messenger) if poller is not None else None

    def polled(self) -> None:
        """The scheduler has taken the messenger's events."""
        with contextlib.suppress(BlockingIOError):  # nothing has come
            os.eventfd_read(self._descriptor)
        self._polled.set()

    def wake(self) -> None:
        """The scheduler is to go on at once: there is something to do in its next round."""
        os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        """Ends the thread, and waits for none of its waits."""
        self._closed = True
        self._polled.set()
        self._poller.unregister(self._descriptor)
        self._leave()

    def _leave(self) -> None:
        """The second of the two that use the descriptor closes it."""
        if next(self._leaves) == 2:
            os.close(self._descriptor)

    def _run(self) -> None:
        try:
            self._wake()
        finally:
            self._leave()

    def _wake(self) -> None:
        while not self._closed:
            try:
                self._messenger.wait(WAIT_SECONDS)
            except Exception:  # it is closed
                return
            self._polled.clear()
            os.eventfd_write(self._descriptor, 1)
            self._polled.wait()
