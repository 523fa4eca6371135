"""Questions to prefillers that are not known yet, and the moments for which the scheduler's thread waits for answers.

SGLang repeats its call only after a second, so a first answer, which takes milliseconds, is waited for. Clients name
the prefillers: however many they name, the thread waits no longer than a part of each second.

Used by the scheduler's thread only.
"""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Callable
from concurrent.futures import Future

from kv_connector.sglang.client_fields import SERVERS_REMEMBERED_MAX, without_answered

FIRST_CONTACT_WAIT_SECONDS = 0.05
"""How long the thread waits in a second, for all prefillers together, and once for each."""
WAIT_PERIOD_SECONDS = 1.0


class FirstContacts:
    """Those of one rank."""

    def __init__(
        self,
        run: Callable[[Callable[[], bool]], Future[bool]],
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``run`` has a thread of its own do what blocks."""
        self._run = run
        self._now_seconds = now_seconds
        self._open: dict[str, Future[bool]] = {}
        self._waited_for: dict[str, None] = {}
        self._period_began_seconds = -math.inf
        self._left_seconds = 0.0

    def answer(self, bootstrap_addr: str, question: Callable[[], bool]) -> Future[bool] | None:
        """The answer, which is given once; None while it has not come."""
        contact = self._open.get(bootstrap_addr)
        if contact is None:
            self._open = without_answered(self._open)
            contact = self._open[bootstrap_addr] = self._run(question)
        if bootstrap_addr not in self._waited_for:
            self._wait(bootstrap_addr, contact)
        if not contact.done():
            return None
        del self._open[bootstrap_addr]
        return contact

    def forget(self, bootstrap_addr: str) -> None:
        """It may be waited for again."""
        self._waited_for.pop(bootstrap_addr, None)

    def _wait(self, bootstrap_addr: str, contact: Future[bool]) -> None:
        begun_seconds = self._now_seconds()
        if begun_seconds - self._period_began_seconds >= WAIT_PERIOD_SECONDS:
            self._period_began_seconds, self._left_seconds = begun_seconds, FIRST_CONTACT_WAIT_SECONDS
        self._waited_for[bootstrap_addr] = None
        if len(self._waited_for) > SERVERS_REMEMBERED_MAX:
            del self._waited_for[next(iter(self._waited_for))]
        if self._left_seconds > 0:
            concurrent.futures.wait([contact], self._left_seconds)
            self._left_seconds -= self._now_seconds() - begun_seconds
