"""Keeps prompts that are not computed yet from filling the decoder's pool.

Pages that a decoder gives to a prompt before it is computed wait for the prefiller. Computed prompts keep pages of the
prefiller until the decoder has room for them. With both pools full the two would wait for each other: the decoder's
pages for prompts that the prefiller cannot begin, the prefiller's for prompts that the decoder cannot take in. So
prompts that are not computed get pages only where these leave room for the longest prompt that there can be. Whatever
the prefiller has computed then finds room here as soon as requests that run have ended, and leaves the prefiller's
pool, in which the others begin. A request that has to wait is let in when its prefiller says that it is computed.

Assumed of vLLM: the pool has room for one request of ``max_model_len``, as its start checks; requests that run end
without pages of those that wait, since they are preempted for each other; a request for which this gate has no answer
is passed over, and those behind it go on.

A prompt that came to the decoder only cannot be computed by its prefiller before it has pages. Where it never leaves
such room it is let in alone, as long as all requests came like that: then the prefiller holds no prompt without pages
here. Once one came to both sides, the decoder computes it itself.

Not covered: engines that prefill for each other (both pools may fill with computed prompts), a pool of which much is in
quarantine, and the first request that comes to both sides while one that was let in alone waits. These end by the
limits.

Used by the engine core's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Queued:
    transfer: Hashable
    """None when no prefiller hears of it before it has pages."""
    needed_blocks: int
    since_seconds: float
    computed: bool = False


class FetchGate:
    """Knows which prompts are computed, and how many blocks those hold that are not."""

    def __init__(
        self, reserved_blocks: int, wait_limit_seconds: float, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._reserved_blocks = reserved_blocks
        self._wait_limit_seconds = wait_limit_seconds
        self._now_seconds = now_seconds
        self._pool_blocks = 0
        self._queued: dict[str, _Queued] = {}
        """Requests without pages."""
        self._of_transfer: dict[Hashable, set[str]] = {}
        """Those that hear of their prompts; several may name one transfer."""
        self._held: dict[str, int] = {}
        """Blocks of requests that got them before their prompts were computed, until these have arrived."""
        self._held_count = 0
        self._any_came_to_both = False

    def size(self, pool_blocks: int) -> None:
        """How many blocks requests may have; before any request.

        vLLM starts with no pool into which the longest request does not fit. A scheduler alone may have one, as in
        vLLM's own tests: room for that request cannot be left there, and what tried to would hold back all others.
        """
        self._pool_blocks = pool_blocks
        if self._reserved_blocks > pool_blocks:
            self._reserved_blocks = 0

    def queued(self, request: str, transfer: Hashable, needed_blocks: int) -> None:
        """The engine will fetch it."""
        self._queued[request] = _Queued(transfer, needed_blocks, self._now_seconds())
        if transfer is not None:
            self._any_came_to_both = True
            self._of_transfer.setdefault(transfer, set()).add(request)

    def computes_here(self, request: str) -> bool:
        """Whether no prefiller may compute the request: it came to the decoder only, and is too long for this pool."""
        queued = self._queued.get(request)
        return (
            queued is not None
            and queued.transfer is None
            and self._any_came_to_both
            and queued.needed_blocks + self._reserved_blocks > self._pool_blocks
        )

    def holds_back(self, request: str) -> bool:
        """Whether the request has to wait; bounded, should its prefiller's word be lost."""
        queued = self._queued.get(request)
        if queued is None or queued.computed:
            return False
        if self._held_count + queued.needed_blocks + self._reserved_blocks <= self._pool_blocks:
            return False
        if queued.transfer is None and not self._held:
            return False
        return self._now_seconds() - queued.since_seconds < self._wait_limit_seconds

    def begun(self, request: str) -> None:
        """The request has pages, and is fetched."""
        queued = self._take(request)
        if queued is None:
            return
        if not queued.computed:
            self._held[request] = queued.needed_blocks
            self._held_count += queued.needed_blocks
        self.computed([queued.transfer])  # its prefiller tells one request of a transfer, and this one is none any more

    def computed(self, transfers: Iterable[Hashable]) -> None:
        """Prefillers need not do anything more before these can be fetched; or they will not be heard of."""
        for transfer in transfers:
            for request in self._of_transfer.pop(transfer, ()):
                self._queued[request].computed = True

    def gone(self, request: str) -> None:
        """The request has its KV, or will not be fetched."""
        self._take(request)
        self._held_count -= self._held.pop(request, 0)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._queued or self._of_transfer or self._held or self._held_count)

    def _take(self, request: str) -> _Queued | None:
        queued = self._queued.pop(request, None)
        if queued is not None and (others := self._of_transfer.get(queued.transfer)) is not None:
            others.discard(request)
            if not others:
                del self._of_transfer[queued.transfer]
        return queued
