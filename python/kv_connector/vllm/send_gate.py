"""Keeps prompts that no decoder has pages for yet from filling the prefiller's pool.

With both legs sent at once, a prefiller full of prompts that wait for their decoder, and a decoder full of pages for
prompts that the prefiller cannot begin, would wait for each other. So a prompt without a grant is held back while
such prompts hold half of the pool, and never when none of them holds anything: then nothing would end the wait where a
router sends the decoder's leg only after the prefiller's answer.

Used by the engine core's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

POOL_SHARE = 1 / 2
"""So much of the pool may be held by prompts without a grant."""


class SendGate:
    """Knows which prompts have a grant, and how many blocks those without one hold."""

    def __init__(self, wait_limit_seconds: float, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._wait_limit_seconds = wait_limit_seconds
        self._now_seconds = now_seconds
        self._block_limit = 0.0
        self._settled: dict[str, bool] = {}
        """All prompts that are to be sent; whether they have been granted, or will never be."""
        self._blocks: dict[str, int] = {}
        """What prompts without a grant hold."""
        self._block_count = 0
        self._held_back_since_seconds: dict[str, float] = {}

    def size(self, pool_blocks: int) -> None:
        """How many blocks the pool has; before any request."""
        self._block_limit = pool_blocks * POOL_SHARE

    def queued(self, request: str) -> None:
        """The engine will compute and send it."""
        self._settled.setdefault(request, False)

    def holds_back(self, request: str, needed_blocks: int) -> bool:
        """Whether the prompt has to wait; bounded, also by a limit of its own."""
        if self._settled.get(request, True) or not self._block_count:
            return False
        first = next(iter(self._held_back_since_seconds), request)  # a long prompt is not overtaken by short ones
        if first == request and self._block_count + needed_blocks <= self._block_limit:
            return False
        since_seconds = self._held_back_since_seconds.setdefault(request, self._now_seconds())
        return self._now_seconds() - since_seconds < self._wait_limit_seconds

    def holds(self, request: str, blocks: int) -> None:
        """The prompt was admitted and will have so many blocks in the end; 0 when it was preempted."""
        self._held_back_since_seconds.pop(request, None)
        if self._settled.get(request) is False:
            self._block_count += blocks - self._blocks.get(request, 0)
            self._blocks[request] = blocks

    def settled(self, request: str) -> None:
        """A decoder has pages for it, or it will not be sent: what it holds ends without another prompt's help."""
        if request in self._settled:
            self._settled[request] = True
            self._forget_blocks(request)

    def gone(self, request: str) -> None:
        """The engine has its blocks back."""
        self._settled.pop(request, None)
        self._forget_blocks(request)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._settled or self._blocks or self._block_count or self._held_back_since_seconds)

    def _forget_blocks(self, request: str) -> None:
        self._block_count -= self._blocks.pop(request, 0)
        self._held_back_since_seconds.pop(request, None)
