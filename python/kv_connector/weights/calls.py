"""Calls of several servers at a time: one that does not answer keeps no other waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from kv_connector.exceptions import WeightsError


class ServerCalls:
    """Calls each in a thread of its own, which ends with the process at the latest. For one thread."""

    def __init__(self, calls: Mapping[str, Callable[[], object]]) -> None:
        """Begins them all. The keys are tickets; a call raises WeightsError if its server fails."""
        self._ended: dict[str, str] = {}
        for ticket, call in calls.items():
            threading.Thread(target=self._run, args=(ticket, call), name="kv-messenger-call", daemon=True).start()

    def ended(self, ticket: str) -> str | None:
        """None while the call goes on; then "", or why it failed."""
        return self._ended.get(ticket)

    def _run(self, ticket: str, call: Callable[[], object]) -> None:
        try:
            call()
        except WeightsError as failure:
            self._ended[ticket] = str(failure)
        except Exception as fault:
            self._ended[ticket] = f"{type(fault).__name__}: {fault}"
        else:
            self._ended[ticket] = ""
