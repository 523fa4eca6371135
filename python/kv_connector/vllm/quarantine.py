"""Blocks that the engine must not reuse yet: their request is over, but a peer may still write to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.vllm.request_numbers import shown


@dataclass(slots=True)
class _Held:
    name: str
    blocks: list[Any]
    rank_count: int


class Quarantine:
    """Holds references to blocks of the engine's pool, and releases them when all ranks have proof.

    Used by the engine core's thread only. It does not decide when a peer can no longer write: the messengers do.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._pool: Any = None
        self._held: dict[str, _Held] = {}

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._pool = block_pool

    def take_in(self, number: str, name: str, block_ids: Iterable[int]) -> None:
        """Holds blocks that a rank's messenger reports as writable by a peer; called while the request holds them.

        ``number`` is never used again, unlike the request's own id, ``name``, which is for the log.
        """
        held = self._held.get(number)
        if held is not None:
            held.rank_count += 1
            return
        blocks: Sequence[Any] = [self._pool.blocks[block_id] for block_id in block_ids]
        self._pool.touch(blocks)
        self._held[number] = _Held(shown(name), list(blocks), rank_count=1)
        self._logger.warning(
            "%d blocks of request %s are kept out of use: their prefiller may still write to them",
            len(blocks),
            shown(name),
        )

    def let_go(self, number: str) -> None:
        """A rank's messenger has proof that nothing writes to the blocks; the last rank's proof frees them."""
        held = self._held[number]
        held.rank_count -= 1
        if held.rank_count == 0:
            del self._held[number]
            self._pool.free_blocks(reversed(held.blocks))
            self._logger.info("%d blocks of request %s are in use again", len(held.blocks), held.name)

    def is_empty(self) -> bool:
        """Whether nothing is held; for leak checks at rest."""
        return not self._held
