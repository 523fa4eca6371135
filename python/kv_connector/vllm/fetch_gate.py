"""Avoids a deadlock between the two pools: prompts that are not computed yet must not fill the decoder's pool.

If a decoder allocates pages for a prompt before it is computed, these pages wait for the prefiller. Computed prompts
hold pages of the prefiller until the decoder has room for them. If both pools were full, each would wait for the other:
the decoder's pages for prompts that the prefiller cannot begin, the prefiller's for prompts that the decoder cannot
admit. So a prompt that is not computed gets pages only if they leave room for the longest possible prompt. Any computed
prompt then finds room here once running requests have ended, and frees pages of the prefiller's pool, in which the
others can begin. A request that has to wait is admitted when its prefiller reports that its prompt is computed.

Assumed of vLLM: the pool has room for one request of ``max_model_len``, which vLLM checks at its start; running
requests end without the pages of waiting ones, because they are preempted for each other; a request for which this gate
returns None is skipped, and those behind it are scheduled.

The prefiller of a decoder-first prompt cannot compute it before it has pages here. A prompt that is too long to leave
that much room is admitted alone as long as all requests were decoder first, since the prefiller then holds no prompt
that lacks pages here. Once a request has been sent to both sides, the decoder computes such a prompt itself.

Not covered: engines that prefill for each other (both pools may fill with computed prompts), a pool of which a large
part is in quarantine, and the first request that is sent to both sides while one that was admitted alone waits. The
time limits end these cases.

Used by the engine core's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

TOO_LONG = (
    "beside its tokens the KV cache has no room for a request of max_model_len; lower max_model_len, or send both legs"
)


@dataclass(slots=True)
class _Queued:
    transfer: Hashable
    """None for a decoder-first request: no prefiller knows of it before it has pages."""
    needed_blocks: int
    since_seconds: float
    computed: bool = False
    outdated: bool = False
    """Whether it is computed by weights that this engine has no longer."""


class FetchGate:
    """Tracks which prompts are computed, and how many blocks are held for those that are not."""

    def __init__(
        self, reserved_blocks: int, wait_limit_seconds: float, now_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._reserved_blocks = reserved_blocks
        self._wait_limit_seconds = wait_limit_seconds
        self._now_seconds = now_seconds
        self._pool_blocks = 0
        self._queued: dict[Hashable, _Queued] = {}
        """Requests without pages."""
        self._of_transfer: dict[Hashable, set[Hashable]] = {}
        """The queued requests of each transfer, waiting for the news that it is computed; several may share one."""
        self._held: dict[Hashable, int] = {}
        """Blocks of requests that got them before their prompts were computed, until the KV has arrived."""
        self._held_count = 0
        self._any_came_to_both = False

    def size(self, pool_blocks: int) -> None:
        """Sets how many blocks all requests together may have; called before any request.

        vLLM does not start with a pool that is too small for the longest request. A scheduler alone may have one, as in
        vLLM's own tests: the reserve would then hold back all requests, so there is none.
        """
        self._pool_blocks = pool_blocks
        if self._reserved_blocks > pool_blocks:
            self._reserved_blocks = 0

    def queued(self, request: str, transfer: Hashable, needed_blocks: int) -> None:
        """The engine has queued a request that will be fetched."""
        self._queued[request] = _Queued(transfer, needed_blocks, self._now_seconds())
        if transfer is not None:
            self._any_came_to_both = True
            self._of_transfer.setdefault(transfer, set()).add(request)

    def why_here(self, request: str) -> str:
        """Why the decoder must compute the prompt itself, as worded in the log; "" if it need not."""
        queued = self._queued.get(request)
        if queued is None:
            return ""
        if queued.outdated:
            return "its prefiller had computed it when this engine got, or rested for, other weights or another adapter"
        too_long = queued.needed_blocks + self._reserved_blocks > self._pool_blocks
        if queued.transfer is None and self._any_came_to_both and too_long:
            return TOO_LONG
        return ""

    def outdated(self, request: str) -> bool:
        """This engine has other weights now, or rests for them: whether the prompt is computed, by those of before."""
        queued = self._queued.get(request)
        if queued is None or not queued.computed:
            return False
        queued.outdated = True
        return True

    def is_outdated(self, request: str) -> bool:
        """Whether its KV is of weights that this engine has no longer."""
        queued = self._queued.get(request)
        return queued is not None and queued.outdated

    def holds_back(self, request: str) -> bool:
        """Whether the request has to wait for its prefiller; bounded, because the prefiller's report may be lost."""
        queued = self._queued.get(request)
        if queued is None or queued.computed:
            return False
        if self._held_count + queued.needed_blocks + self._reserved_blocks <= self._pool_blocks:
            return False
        if queued.transfer is None and not self._held:
            return False
        return self._now_seconds() - queued.since_seconds < self._wait_limit_seconds

    def begun(self, request: str, held_as: Hashable = None) -> None:
        """The request has its pages and is being fetched; ``gone`` is called with ``held_as``, if that is given."""
        queued = self._take(request)
        if queued is None:
            return
        if not queued.computed:
            self._held[held_as or request] = queued.needed_blocks
            self._held_count += queued.needed_blocks
        self.computed([queued.transfer])  # the one report of a transfer goes to this request: do not wait for it

    def computed(self, transfers: Iterable[Hashable]) -> None:
        """These transfers are computed, or no report about them will come."""
        for transfer in transfers:
            for request in self._of_transfer.pop(transfer, ()):
                self._queued[request].computed = True

    def gone(self, request: Hashable) -> None:
        """The request has its KV, or will not be fetched any more."""
        self._take(request)
        self._held_count -= self._held.pop(request, 0)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._queued or self._of_transfer or self._held or self._held_count)

    def _take(self, request: Hashable) -> _Queued | None:
        queued = self._queued.pop(request, None)
        if queued is not None and (others := self._of_transfer.get(queued.transfer)) is not None:
            others.discard(request)
            if not others:
                del self._of_transfer[queued.transfer]
        return queued
