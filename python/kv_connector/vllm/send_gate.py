"""Keeps prompts that no decoder has pages for yet from filling the prefiller's pool.

With both legs sent at once, a prefiller full of prompts that wait for their decoder, and a decoder full of pages for
prompts that the prefiller cannot begin, would wait for each other. So a prompt without a grant begins only where such
prompts then leave half of the pool, and room for the longest prompt in the queue. While none of them holds anything
the wait is short: a router may send the decoder's leg only after the prefiller's answer.

Used by the engine core's thread only.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

POOL_SHARE = 1 / 2
"""So much of the pool may be held by prompts without a grant."""
FIRST_WAIT_SECONDS = 2.0
"""A prompt beside which nothing waits for a grant begins when so long no prompt of the queue was granted."""


class SendGate:
    """Knows which prompts have a grant, and how many blocks those without one hold."""

    def __init__(self, wait_limit_seconds: float, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._wait_limit_seconds = wait_limit_seconds
        self._now_seconds = now_seconds
        self._pool_blocks = 0
        self._needs: dict[str, int] = {}
        """All prompts that are to be sent, with the blocks that they need in the end."""
        self._settled: set[str] = set()
        """Those that have been granted, or never will be."""
        self._queued: set[str] = set()
        """Those that have no blocks."""
        self._longest: list[int] | None = None
        """The needs of the two longest of the queue; None when it has changed."""
        self._block_count = 0
        """What prompts that have begun without a grant hold."""
        self._granted_in_queue_seconds = float("-inf")
        self._held_back_since_seconds: dict[str, float] = {}

    def size(self, pool_blocks: int) -> None:
        """How many blocks the pool has; before any request."""
        self._pool_blocks = pool_blocks

    def queued(self, request: str, needed_blocks: int) -> None:
        """The engine will compute and send it."""
        if request not in self._needs:
            self._needs[request] = needed_blocks
            self._queued.add(request)
            self._longest = None

    def holds_back(self, request: str) -> bool:
        """Whether the prompt has to wait; bounded, also by limits of its own."""
        if request in self._settled or request not in self._queued:
            return False
        first = next(iter(self._held_back_since_seconds), request)  # a long prompt is not overtaken by short ones
        if first == request and self._block_count + self._needs[request] <= self._limit_beside(request):
            return False
        now_seconds = self._now_seconds()
        since_seconds = self._held_back_since_seconds.setdefault(request, now_seconds)
        if not self._block_count and now_seconds - max(since_seconds, self._granted_in_queue_seconds) >= (
            FIRST_WAIT_SECONDS
        ):
            return False
        return now_seconds - since_seconds < self._wait_limit_seconds

    def begun(self, request: str) -> None:
        """The prompt has blocks."""
        if request in self._queued:
            self._leave_queue(request)
            if request not in self._settled:
                self._block_count += self._needs[request]

    def preempted(self, request: str) -> None:
        """The engine has its blocks back and will compute it again."""
        if request in self._needs and request not in self._queued:
            self._give_back(request)
            self._queued.add(request)
            self._longest = None

    def settled(self, request: str) -> None:
        """A decoder has pages for it, or it will not be sent: what it holds ends without another prompt's help."""
        if request not in self._needs or request in self._settled:
            return
        if request in self._queued:
            self._granted_in_queue_seconds = self._now_seconds()
            self._held_back_since_seconds.pop(request, None)
        else:
            self._give_back(request)
        self._settled.add(request)

    def gone(self, request: str) -> None:
        """The request has ended, and the engine has its blocks back."""
        if request in self._needs:
            if request in self._queued:
                self._leave_queue(request)
            else:
                self._give_back(request)
            self._settled.discard(request)
            del self._needs[request]

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._needs or self._settled or self._queued or self._block_count or self._held_back_since_seconds)

    def _limit_beside(self, request: str) -> float:
        if self._longest is None:
            self._longest = heapq.nlargest(2, (self._needs[each] for each in self._queued))
        others = self._longest[1:] if self._longest[0] == self._needs[request] else self._longest
        return min(self._pool_blocks * POOL_SHARE, self._pool_blocks - max(others, default=0))

    def _leave_queue(self, request: str) -> None:
        self._queued.discard(request)
        self._held_back_since_seconds.pop(request, None)
        self._longest = None

    def _give_back(self, request: str) -> None:
        if request not in self._settled:
            self._block_count -= self._needs[request]
