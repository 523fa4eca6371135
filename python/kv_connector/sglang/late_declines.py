"""Requests that ended before their prefillers were found: each is declined as soon as its prefiller is.

Else the prefiller would wait for SGLang's limit of 300 s for a decoder that does not come, and not be idle meanwhile.
Used by the scheduler's thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from kv_connector.sglang.client_fields import SERVERS_REMEMBERED_MAX

LATE_LIMIT_SECONDS = 60.0
"""How long a prefiller is looked for; one that answers at all does so within seconds."""

logger = logging.getLogger("sglang.srt.kv_messenger")


class Leaving(Protocol):
    """A request that has ended."""

    def decline_once_found(self) -> bool:
        """Declines it if its prefiller is found by now; whether there is nothing left to do."""


class LateDeclines:
    """Those of one rank."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._leaving: list[tuple[Leaving, float]] = []
        """With when each is given up."""

    def add(self, leaving: Leaving) -> None:
        """Has a request declined that has ended."""
        self._leaving.append((leaving, self._now_seconds() + LATE_LIMIT_SECONDS))
        del self._leaving[:-SERVERS_REMEMBERED_MAX]  # their prefillers may be made up by a client

    def poll(self) -> None:
        """Looks after all of them; called once a round of the scheduler."""
        if self._leaving:
            now_seconds = self._now_seconds()
            self._leaving = [each for each in self._leaving if not self._is_over(each[0]) and now_seconds < each[1]]

    def count(self) -> int:
        """The number of requests whose prefillers are still looked for."""
        return len(self._leaving)

    @staticmethod
    def _is_over(leaving: Leaving) -> bool:
        try:
            return leaving.decline_once_found()
        except Exception:  # it would end the scheduler
            logger.exception("a request that has ended is not declined")
            return True
