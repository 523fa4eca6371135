"""Blocks that the engine must not use again yet: the request is over, and a peer may still write to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class _Held:
    blocks: list[Any]
    rank_count: int


class Quarantine:
    """Takes references of its own to blocks in the engine's pool, and gives them back when all ranks have proof.

    Used by the engine core's thread only. It does not know when a peer can write no more: the messengers do.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._pool: Any = None
        self._held: dict[str, _Held] = {}

    def bind(self, block_pool: Any) -> None:
        """Where the engine's blocks are; before any request."""
        self._pool = block_pool

    def take_in(self, request_id: str, block_ids: Iterable[int]) -> None:
        """A rank's messenger says that these blocks may still be written to; called while the request holds them."""
        held = self._held.get(request_id)
        if held is not None:
            held.rank_count += 1
            return
        blocks: Sequence[Any] = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.touch(blocks)
        self._held[request_id] = _Held(list(blocks), rank_count=1)
        self._logger.warning(
            "%d blocks of request %s are kept out of use: their prefiller may still write to them",
            len(blocks),
            request_id,
        )

    def let_go(self, request_id: str) -> None:
        """A rank's messenger has proof that nothing writes to them any more."""
        held = self._held[request_id]
        held.rank_count -= 1
        if held.rank_count == 0:
            del self._held[request_id]
            self._pool.free_blocks(reversed(held.blocks))
            self._logger.info("%d blocks of request %s are in use again", len(held.blocks), request_id)

    def is_empty(self) -> bool:
        """Whether nothing is held; for leak checks at rest."""
        return not self._held
