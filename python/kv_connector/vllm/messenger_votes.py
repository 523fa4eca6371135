"""Counts what each of the engine's messengers reports once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class MessengerVotes:
    """The numbers that some of the engine's messengers have reported, and not all. Used by one thread only."""

    def __init__(self, messenger_count: int) -> None:
        self._messenger_count = messenger_count
        self._votes: Counter[str] = Counter()

    def complete(self, numbers: Iterable[str]) -> list[str]:
        """Adds a report of each number; returns those that all messengers have reported now."""
        found = []
        for number in numbers:
            self._votes[number] += 1
            if self._votes[number] == self._messenger_count:
                del self._votes[number]
                found.append(number)
        return found

    def is_empty(self) -> bool:
        """Whether no number is counted; for leak checks at rest."""
        return not self._votes
