"""Requests that are to be sent on, and have ended while they were loading: the engine takes one report of each.

It is the report of the load. If the messengers load, it comes at each of them once nothing reads the request's pages
there. If another connector loads, nothing has read them, and no report is made here. Used by the worker's main thread
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from kv_connector.vllm.request_numbers import RequestNames


class EndedLoading:
    """Keeps them until both are over at this messenger: the load and what is sent."""

    def __init__(self) -> None:
        self._sending: set[str] = set()
        self._loaded: set[str] = set()
        """Those of them whose load is over, and not reported."""
        self._unread: set[str] = set()
        """Those that are not loaded here, until the messenger releases them."""

    def ended(self, requests: Iterable[str]) -> None:
        """The engine has ended these, of which the load may have been reported already."""
        self._sending.update(requests)

    def ended_unread(self, requests: Iterable[str], names: RequestNames) -> None:
        """The engine has ended these, and takes no report of them from here: their names are dropped."""
        names.take(requests)
        self._unread.update(requests)

    def has(self, request: str) -> bool:
        """Whether it is one of them and may still be read."""
        return request in self._sending or request in self._unread

    def sent(self, request: str) -> bool:
        """Nothing reads its pages any more; returns whether its load is to be reported now."""
        self._sending.discard(request)
        self._unread.discard(request)
        is_due = request in self._loaded
        self._loaded.discard(request)
        return is_due

    def loaded(self, request: str) -> bool:
        """Its load is over; returns whether that is to be reported now."""
        if request in self._sending:
            self._loaded.add(request)
        return request not in self._sending

    def held(self) -> dict[str, Sized]:
        """For leak checks at rest."""
        return {"ended loading": self._sending, "loaded and ended": self._loaded, "ended unread": self._unread}
