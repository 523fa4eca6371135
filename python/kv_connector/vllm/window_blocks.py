"""Blocks of a window that are being sent: the engine drops them when the window moves on, and they must not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class WindowBlocks:
    """Takes references of its own to blocks in the engine's pool, for prompts that the engine may decode on.

    Used by the engine core's thread only. Blocks of full attention need none: a request keeps them to its end.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._kept: dict[str, Sequence[Any]] = {}

    def bind(self, pool: Any) -> None:
        """Where the engine's blocks are; before any request."""
        self._pool = pool

    def keep(self, request_id: str, block_ids: Iterable[int]) -> None:
        """While the request holds them."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        if blocks:
            self._pool.touch(blocks)
            self._kept[request_id] = blocks

    def let_go(self, request_id: str) -> None:
        """The request's blocks are sent, or will be overwritten after the messenger was fenced; harmless for others."""
        blocks = self._kept.pop(request_id, ())
        if blocks:
            self._pool.free_blocks(reversed(blocks))

    def is_empty(self) -> bool:
        """Whether nothing is kept; for leak checks at rest."""
        return not self._kept
