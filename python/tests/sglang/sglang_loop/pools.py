"""The pages of one engine: what each holds, which request has it, and a cache of prompts' beginnings.

A page that is freed loses what it held at once, and is the next one given away: no engine is less kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

LAYERS = 2
HEADS = 2
CACHE = "the cache"

Cell = tuple[int, int, int]
"""A page, a layer and a head: the least that is written at once."""


def page_keys(tokens: Sequence[int], page_tokens: int, weights: int) -> list[int]:
    """What stands for each page of a prompt: its KV depends on all tokens up to its end, and on the weights."""
    ends = range(page_tokens, len(tokens) + page_tokens, page_tokens)
    return [hash((*tokens[:end], 7, weights)) for end in ends]


class Pool:
    """Pages by number; on every rank of an engine a number means the same tokens."""

    def __init__(self, page_count: int, report: Callable[[str, str], None]) -> None:
        self.page_count = page_count
        self.kv: dict[Cell, Any] = {}
        self.owners: list[Any] = [None] * page_count
        self._free = list(range(page_count))
        self._freed = itertools.count(1)
        self._report = report

    @property
    def free_count(self) -> int:
        return len(self._free)

    def alloc(self, count: int, owner: Any) -> list[int] | None:
        if count > len(self._free):
            return None
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self.owners[page] = owner
        return pages

    def release(self, pages: Sequence[int]) -> None:
        for page in pages:
            if self.owners[page] is None:
                self._report("page freed twice", f"page {page}")
                continue
            self.owners[page] = None
            freed = ("freed", next(self._freed))
            for layer in range(LAYERS):
                for head in range(HEADS):
                    self.kv[page, layer, head] = freed
            self._free.append(page)

    def set_aside(self, page: int) -> None:
        """No request is ever given it."""
        self._free.remove(page)

    def holds(self, page: int, key: Any, heads: Sequence[int] = range(HEADS)) -> bool:
        return all(self.kv.get((page, layer, head)) == (key, layer, head) for layer in range(LAYERS) for head in heads)


@dataclass(eq=False)
class Table:
    """A request's pages by position; the first ``shared`` ones are the cache's."""

    keys: list[int]
    pages: list[int] = field(default_factory=list)
    shared: int = 0
    mixed: bool = False
    """Whether some pages are of other weights than the keys: they are not cached."""

    def update(self, keys: list[int]) -> None:
        """The engine has other weights; what is here already is of those before."""
        if self.pages:
            self.mixed = True
        else:
            self.keys = keys


class PrefixCache:
    """SGLang's radix cache by whole pages."""

    def __init__(self, pool: Pool, *, enabled: bool) -> None:
        self.enabled = enabled
        self._pool = pool
        self._page_of: dict[int, int] = {}
        self._locks: dict[int, int] = {}
        self._depth: dict[int, int] = {}

    def match(self, table: Table, page_limit: int) -> None:
        """Gives a request the pages that are here already."""
        assert not table.pages
        for depth, key in enumerate(table.keys[:page_limit]):
            page = self._page_of.get(key)
            if not self.enabled or page is None:
                break
            self._lock(key, depth)
            table.pages.append(page)
            table.shared += 1

    def insert(self, table: Table, whole_pages: int) -> None:
        """Takes the pages that are computed; of two pages with equal KV the request's own is freed."""
        if not self.enabled or table.mixed:
            return
        for depth in range(table.shared, min(whole_pages, len(table.pages))):
            key, own = table.keys[depth], table.pages[depth]
            page = self._page_of.setdefault(key, own)
            if page != own:
                self._pool.release([own])
                table.pages[depth] = page
            self._pool.owners[page] = CACHE
            self._lock(key, depth)
            table.shared += 1

    def release(self, table: Table, whole_pages: int = 0) -> None:
        """The request is over; its first ``whole_pages`` pages stay here."""
        self.insert(table, whole_pages)
        for key in table.keys[: table.shared]:
            self._locks[key] -= 1
        self._pool.release(table.pages[table.shared :])
        table.pages, table.shared = [], 0

    def make_room(self, count: int) -> bool:
        """Evicts what no request uses until so many pages are free."""
        unused = sorted((key for key, locks in self._locks.items() if not locks), key=lambda key: -self._depth[key])
        if self._pool.free_count + len(unused) < count:
            return False
        for key in unused[: max(0, count - self._pool.free_count)]:
            self._pool.release([self._page_of.pop(key)])
            del self._locks[key], self._depth[key]
        return True

    def page_of(self, key: int) -> int | None:
        return self._page_of.get(key)

    def wrong_pages(self) -> list[int]:
        """Pages that do not hold what they stand for."""
        return [page for key, page in self._page_of.items() if not self._pool.holds(page, key)]

    def locked(self) -> int:
        return sum(self._locks.values())

    def _lock(self, key: int, depth: int) -> None:
        self._locks[key] = self._locks.get(key, 0) + 1
        self._depth[key] = depth
