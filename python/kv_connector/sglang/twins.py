"""Finds prompts whose computed pages SGLang's cache may discard when their pass is over. Pure.

After each pass SGLang inserts the computed tokens into its radix cache. If the cache has a prefix of the prompt
already, it keeps its own pages, assigns them to the request, and frees those that the pass has written: another request
may overwrite them at once. So such pages must not be read, neither during their pass nor after it; SGLang gives their
twins in the cache to be sent.

The cache has a prefix already if another request in flight computes it too, or if SGLang has matched less of the prompt
than the cache holds, because it always leaves the last token to be computed (or all tokens whose log-probabilities are
requested).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """The part of a request that one forward pass computes."""

    tokens: Sequence[int]
    """The tokens of the whole prompt."""
    namespace: tuple[Any, ...]
    """SGLang's extra key and cache salt; requests with different ones share no pages."""
    first_token: int
    end_token: int
    match_limit: int
    """The largest number of tokens that SGLang may have matched in its cache."""
    owner: Any
    """The object whose ``leave_to_send`` is called; the same for all passes of a request."""


class Twins:
    """Compares each batch with those that are still in flight. Used by the scheduler's thread only."""

    def __init__(self, page_tokens: int, batches_in_flight: int) -> None:
        self._page_tokens = page_tokens
        self._earlier: deque[Sequence[Computed]] = deque(maxlen=batches_in_flight)

    def leave_to_send(self, batch: Sequence[Computed]) -> None:
        """Calls ``leave_to_send`` for prompts that may have twins; it may be called again for the same prompt."""
        for part in batch:
            if self._floor(part.first_token) >= self._floor(part.match_limit):
                part.owner.leave_to_send()
        together = [part for parts in self._earlier for part in parts] + list(batch)
        if len(together) > 1:
            for first_token in {self._floor(part.first_token) for part in together}:
                self._compare(together, first_token)
        self._earlier.append(batch)

    def _compare(self, together: Sequence[Computed], first_token: int) -> None:
        """Finds prompts that compute the page at ``first_token`` with equal tokens in it and before it."""
        end_token = first_token + self._page_tokens
        alike: defaultdict[tuple[Any, ...], list[Computed]] = defaultdict(list)
        for part in together:
            if self._floor(part.first_token) <= first_token and part.end_token >= end_token:
                page = tuple(part.tokens[first_token:end_token])
                alike[part.namespace, page].append(part)
        for parts in alike.values():
            if any(part.owner is not parts[0].owner for part in parts):
                self._compare_beginnings(parts, end_token)

    def _compare_beginnings(self, parts: Sequence[Computed], end_token: int) -> None:
        by_beginning: defaultdict[tuple[int, ...], list[Computed]] = defaultdict(list)
        for part in parts:
            by_beginning[tuple(part.tokens[:end_token])].append(part)
        for twins in by_beginning.values():
            if any(part.owner is not twins[0].owner for part in twins):
                for part in twins:
                    part.owner.leave_to_send()

    def _floor(self, tokens: int) -> int:
        return tokens // self._page_tokens * self._page_tokens
