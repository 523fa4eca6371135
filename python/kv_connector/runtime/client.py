"""A messenger as its engine uses it: it takes a command or not, and is given up once it does not respond.

Used by one thread of the engine. It blocks in ``fence`` only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kv_connector.runtime.commands import Command, PrefillEnded, StepEnded, StepFailed, name_of
from kv_connector.runtime.facade import Event, MessengerPort


class MessengerClient:
    """Submits and polls. A messenger that fails, or does not take an end, is closed: it moves no more KV."""

    def __init__(
        self,
        messenger: MessengerPort,
        logger: logging.Logger,
        on_lost: Callable[[bool], None],
        failed_polls_max: int = 1,
    ) -> None:
        """``on_lost`` is called once, with whether the messenger could be closed: then it accesses no page any more.

        ``failed_polls_max``: the number of consecutive failed polls after which the messenger is given up.
        """
        self._messenger = messenger
        self._logger = logger
        self._on_lost = on_lost
        self._failed_polls_max = failed_polls_max
        self._failed_polls = 0
        self.lost_because = ""
        """Why the messenger was given up; "" while it works."""
        self.closed = False
        """Whether it was given up and closed."""

    def submit(self, command: Command) -> bool:
        """Whether the messenger has taken the command."""
        if self.lost_because:
            return False
        try:
            self._messenger.submit([command])
        except Exception as fault:
            self._logger.error("the messenger refused a %s: %s", name_of(command), fault)
            return False
        return True

    def end(self, command: PrefillEnded | StepEnded | StepFailed) -> None:
        """Submits an end; a messenger that does not take it is given up."""
        if not self.submit(command):
            self.give_up(f"it did not take the end of a {'prefill' if isinstance(command, PrefillEnded) else 'step'}")

    def poll(self, handle: Callable[[Event], None]) -> None:
        """Calls ``handle`` for each event since the last poll."""
        if self.lost_because:
            return
        try:
            events = self._messenger.poll()
        except Exception as fault:
            self._failed_polls += 1
            self._logger.error("the messenger could not be polled: %s", fault)
            if self._failed_polls >= self._failed_polls_max:
                times = f" {self._failed_polls} times" if self._failed_polls > 1 else ""
                self.give_up(f"it could not be polled{times}: {fault}")
            return
        self._failed_polls = 0
        for event in events:
            try:
                handle(event)
            except Exception:  # it harms its own request, whose deadline then ends it
                self._logger.exception("an event could not be handled: %.200s", event)

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str] | None:
        """Blocks until nothing reads the pages of these prefills, or until the limit; returns those not read any more.

        None if the fence failed; the messenger is then given up.
        """
        try:
            return self._messenger.fence(requests, limit_seconds)
        except Exception as fault:
            self.give_up(f"the fence failed: {fault}")
            return None

    def give_up(self, reason: str) -> None:
        """Closes a messenger that does not respond; only after that can it access no page any more."""
        if self.lost_because:
            return
        self.lost_because = reason
        self._logger.error("the messenger is given up, this engine moves no more KV until it is restarted: %s", reason)
        try:
            self._messenger.close()
            self.closed = True
        except Exception as fault:
            self._logger.error("it could not be closed, so pages in transfer stay held: %s", fault)
        self._on_lost(self.closed)
