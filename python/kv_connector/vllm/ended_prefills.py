"""Prefills that the engine has ended and messengers know, until nothing reads their pages."""

from __future__ import annotations

from collections.abc import Iterable

from kv_connector.vllm.messenger_votes import MessengerVotes


class EndedPrefills:
    """Which report ends each of them at the engine: its own, or that of a load, this connector's or another one's.

    The engine gives a request's blocks back at the first report, and ends itself at a second one. Used by the engine
    core's thread only.
    """

    def __init__(self, messenger_count: int) -> None:
        self._held: dict[str, bool] = {}
        """Those whose blocks are kept until the workers report them as sent, and whether a decoder has asked for each.
        """
        self._quiet: set[str] = set()
        """Those that the workers do not report as sent, until messengers have released them, by number."""
        self._released = MessengerVotes(messenger_count)

    def hold(self, request_id: str, *, is_granted: bool) -> None:
        """The workers report it as sent. ``is_granted``: whether a decoder has asked for it."""
        self._held[request_id] = is_granted

    def granted(self, request_id: str) -> None:
        """A decoder has asked for one that may be held."""
        if request_id in self._held:
            self._held[request_id] = True

    def ungranted(self) -> list[str]:
        """Those held ones for which no decoder has asked."""
        return [request_id for request_id, is_granted in self._held.items() if not is_granted]

    def holds(self, request_id: str) -> bool:
        """Whether its blocks are kept until it is reported as sent."""
        return request_id in self._held

    def sent(self, request_id: str) -> None:
        """The workers have reported it."""
        self._held.pop(request_id, None)

    def end_quietly(self, number: str) -> None:
        """The report of a load frees its blocks."""
        self._quiet.add(number)

    def is_quiet(self, number: str) -> bool:
        """Whether it ended so, and messengers still have it."""
        return number in self._quiet

    def released(self, numbers: Iterable[str]) -> list[str]:
        """A messenger has released these; returns those, offers among them, that all messengers have released."""
        released = self._released.complete(numbers)
        self._quiet.difference_update(released)
        return released

    def has_work(self) -> bool:
        """Whether the engine must go on stepping, to hear of them."""
        return bool(self._held or self._quiet)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not self.has_work() and self._released.is_empty()
