"""Page numbers on their way from the device, and what is done once they are here: the scheduler's thread does not wait.

SGLang keeps page numbers on the device, on a stream that waits for the forward pass in flight. Reading them at once
holds the next pass back until that one is over. So they are copied behind it into page-locked memory, and the
scheduler's thread looks for them whenever it passes by: when it begins a round, hands pages over or polls a request,
and before and behind the layers that it queues.

Used by the scheduler's thread only, also in a pass. It waits for nothing, and decides nothing about what it is given.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

NUMBERS_MIN = 4096
"""How many a page-locked buffer holds at least, so that one serves passes of most sizes."""


@dataclass(frozen=True, slots=True)
class Copied:
    """Page numbers that are on their way, or here."""

    event: Any
    """Over when they are here; None = they are."""
    take: Callable[[], list[list[int]]]
    """Gives the numbers of each row, once, when they are here."""


class PinnedCopies:
    """Copies rows of numbers into page-locked memory, on the current stream. Each buffer serves one pass after another.

    Nothing is copied while a graph is captured: SGLang plans no pass then.
    """

    def __init__(self) -> None:
        self._free: list[tuple[Any, Any]] = []
        """Buffers with their events, of which nothing is awaited."""

    def copy(self, rows: Sequence[Any]) -> Copied:
        """Queues the copy of all rows."""
        import torch

        counts = [len(row) for row in rows]
        joined = torch.cat([row.to(torch.int64) for row in rows])
        buffer, event = self._buffer(len(joined))
        buffer[: len(joined)].copy_(joined, non_blocking=True)
        event.record()
        return Copied(event, lambda: self._taken(buffer, event, counts))

    def _buffer(self, count: int) -> tuple[Any, Any]:
        import torch

        buffer, event = self._free.pop() if self._free else (None, torch.cuda.Event())
        if buffer is None or len(buffer) < count:
            held = max(NUMBERS_MIN, 1 << (count - 1).bit_length())
            buffer = torch.empty(held, dtype=torch.int64, pin_memory=True)
        return buffer, event

    def _taken(self, buffer: Any, event: Any, counts: Sequence[int]) -> list[list[int]]:
        numbers = buffer[: sum(counts)].tolist()
        self._free.append((buffer, event))
        return _split(numbers, counts)


def _split(numbers: list[int], counts: Sequence[int]) -> list[list[int]]:
    rows, first = [], 0
    for count in counts:
        rows.append(numbers[first : first + count])
        first += count
    return rows


class PageNumbers:
    """What is to be done with page numbers, in the order in which they were asked for."""

    def __init__(self, copies: Any) -> None:
        """``copies``: a ``PinnedCopies``; None where numbers are read at once, since no pass runs meanwhile."""
        self._copies = copies
        self._coming: deque[tuple[Any, Callable[[], None]]] = deque()
        self.may_come_later = False
        """Whether a pass may be in flight that numbers would be waited for, so that they come later."""

    @contextlib.contextmanager
    def before_pass(self, *, overlaps: bool) -> Iterator[None]:
        """While the scheduler queues a pass; ``overlaps``: the one before may still run."""
        self.look()
        self.may_come_later = overlaps and self._copies is not None
        try:
            yield
        finally:
            self.may_come_later = False
            self.look()

    def copy(self, rows: Sequence[Any]) -> Copied:
        """The numbers of these rows, each a tensor of SGLang's."""
        if self.may_come_later:
            return self._copies.copy(rows)  # type: ignore[no-any-return]
        numbers = [list(row.tolist()) for row in rows]
        return Copied(None, lambda: numbers)

    def when_here(self, event: Any, act: Callable[[], None]) -> None:
        """Calls ``act`` once the event is over, and all that was asked for before is done; None = it is over.

        That may be at once. What ``act`` raises is raised where its numbers are looked for.
        """
        self.look()
        if event is None and not self._coming:
            act()
            return
        self._coming.append((event, act))
        self.look()

    def look(self) -> None:
        """Does what may be done by now."""
        while self._coming and (self._coming[0][0] is None or self._coming[0][0].query()):
            self._coming.popleft()[1]()

    @property
    def are_coming(self) -> bool:
        """Whether numbers are awaited."""
        return bool(self._coming)
