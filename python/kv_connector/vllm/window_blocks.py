"""Blocks of a window that are being sent: they must not change, although the engine's window moves on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class WindowBlocks:
    """Holds references to blocks of the engine's pool, for prompts that the engine may go on to decode.

    Used by the engine core's thread only. Blocks of full attention need none: a request keeps them until it ends.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._kept: dict[str, Sequence[Any]] = {}

    def bind(self, pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._pool = pool

    def keep(self, request_id: str, block_ids: Iterable[int]) -> None:
        """Holds these blocks; called while the request holds them."""
        blocks = [self._pool.blocks[block_id] for block_id in block_ids]
        if blocks:
            self._pool.touch(blocks)
            self._kept[request_id] = blocks

    def let_go(self, request_id: str) -> None:
        """Releases the blocks, once they are sent or before a fence; does nothing for other requests."""
        blocks = self._kept.pop(request_id, ())
        if blocks:
            self._pool.free_blocks(reversed(blocks))

    def is_empty(self) -> bool:
        """Whether nothing is kept; for leak checks at rest."""
        return not self._kept
