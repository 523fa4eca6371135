"""An engine's second pool, for layers with a window or a state. ``PrefixCache`` has no part for it.

So no engine with one caches anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kv_connector.sglang.pool_kinds import STATE, WINDOWED
from sglang_loop.pools import Pool

if TYPE_CHECKING:
    from sglang_loop.ranks import EnginePlan

PADDING = 0
"""SGLang's page for padding, which no request has."""


class BesidePool:
    """Its pages by the request's own positions; a state is at position 0. Empty where the model has no such layers."""

    def __init__(self, plan: EnginePlan, report: Callable[[str, str], None]) -> None:
        self.kind, self._window_tokens, self._page_tokens = plan.beside, plan.window_tokens, plan.page_tokens
        self.pool = Pool(plan.pages + 1, report)
        self.pool.set_aside(PADDING)

    def needed(self, prompt_tokens: int) -> range:
        """The positions that a decoder needs."""
        if self.kind == STATE:
            return range(1)
        if self.kind == WINDOWED:
            return range(max(0, prompt_tokens - self._window_tokens) // self._page_tokens, self._pages(prompt_tokens))
        return range(0)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens)

    def _computed(self, first_token: int, end_token: int) -> range:
        """The positions that a pass over these tokens writes."""
        if self.kind == WINDOWED:
            return range(first_token // self._page_tokens, self._pages(end_token))
        return range(int(self.kind == STATE))

    # ---- an engine's own

    def take(self, request: Any, positions: Sequence[int]) -> None:
        """Pages for those that have none; there are as many as of full attention, of which each request has more."""
        for position in positions:
            if position not in request.beside:
                (request.beside[position],) = self.pool.alloc(1, request) or ()

    def cells(self, request: Any, first_token: int, end_token: int) -> list[tuple[int, Any]]:
        """The pages that a pass over these tokens writes, with what they hold then."""
        positions = self._computed(first_token, end_token)
        self.take(request, positions)
        keys = request.table.keys
        last = keys[self._pages(end_token) - 1]
        return [(request.beside[at], last if self.kind == STATE else keys[at]) for at in positions]

    def leave(self, request: Any, end_token: int) -> None:
        """A pass over the tokens before this one is over: pages behind the window are another request's."""
        if self.kind == WINDOWED:
            kept = self.needed(end_token)
            self.pool.release([request.beside.pop(at) for at in sorted(request.beside) if at < kept.start])

    def given(self, request: Any) -> list[list[int]]:
        """As SGLang gives them: a list for each kind of second pool."""
        pages = [request.beside[at] for at in self.needed(len(request.tokens))]
        return [pages] if self.kind else []

    def release(self, request: Any) -> None:
        """The request is over."""
        self.pool.release(list(request.beside.values()))
        request.beside.clear()

    def wrong(self, request: Any) -> list[int]:
        """The positions that do not hold what a decoder needs there."""
        keys = request.table.keys
        return [
            at
            for at in self.needed(len(request.tokens))
            if not self.pool.holds(request.beside[at], keys[-1] if self.kind == STATE else keys[at])
        ]

    def held(self) -> list[str]:
        """For the checker at rest."""
        count = self.pool.page_count - 1 - self.pool.free_count
        return [f"{count} pages of its second pool"] if count else []
