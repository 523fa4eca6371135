"""Page numbers that come from a simulated GPU: behind what is queued, and seen late."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kv_connector.sglang.page_numbers import Copied, PageNumbers
from sglang_loop.ranks import Rank, Stream

NO_PAGE = -1


class Numbers:
    """Some of them, as SGLang has them in page-locked memory: no page of this engine, until they are here."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._coming = list(numbers)
        self._here = [NO_PAGE] * len(self._coming)

    def come(self) -> None:
        self._here = self._coming

    def __len__(self) -> int:
        return len(self._coming)

    def tolist(self) -> list[int]:
        return list(self._here)


class Event:
    """Over when the stream has come there, and seen only after it has been overlooked this often."""

    def __init__(self, of_stream: Any, overlooked: int) -> None:
        self._of_stream, self._overlooked = of_stream, overlooked

    def query(self) -> bool:
        if not self._of_stream.query():
            return False
        self._overlooked -= 1
        return self._overlooked < 0


class LateCopies:
    """As ``PinnedCopies``: of a rank, on its engine's stream."""

    def __init__(self, stream: Stream, name: str) -> None:
        self._stream = stream
        self._drawn = random.Random(f"page numbers of {name}")
        self._overlooked_max = self._drawn.choice([0, 3, 20])
        self._behind_pass = self._drawn.random() < 0.7
        """Whether SGLang holds its tables until a pass is over; with some attention backends until it has begun."""

    def copied(self, numbers: Sequence[int]) -> tuple[Numbers, Event]:
        """They and the event behind them."""
        coming = Numbers(numbers)
        if self._behind_pass:
            self._stream.queue(coming.come)
            return coming, Event(self._stream.event(), self._drawn.randint(0, self._overlooked_max))
        coming.come()
        return coming, Event(Stream().event(), self._drawn.randint(0, self._overlooked_max))

    def copy(self, rows: Sequence[Any]) -> Copied:
        """The rows of one pass."""
        copies = [self.copied(row.tolist()) for row in rows]
        return Copied(copies[-1][1], lambda: [numbers.tolist() for numbers, _ in copies])


def have_numbers_come_late(rank: Rank, copies: LateCopies) -> None:
    """As on a GPU whose scheduler overlaps passes."""
    numbers = rank.endpoint.page_numbers = PageNumbers(copies)
    if rank.endpoint.steps is not None:
        rank.endpoint.steps.page_numbers = numbers
