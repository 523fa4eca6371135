"""How much of a prompt a prefix cache holds, as a fetch of that much needs it. Pure.

A group with full attention needs all blocks from the first one on. One with a window or chunks needs those that the
last token attends to: earlier ones may have been used again since. A draft's KV of a token depends on the token that
follows, and a cached block may have been followed by another one: the last block is computed again then, as vLLM does
with its own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kv_connector.vllm.kv_groups import KvGroup

FindCached = Callable[[Any, list[int]], Sequence[Any] | None]
"""vLLM's ``BlockPool.get_cached_block``: a block of each of these groups, or None if one has none."""


class HeldPrefix(NamedTuple):
    """The first blocks of a prompt that can be fetched."""

    block_count: int
    firsts: list[int]
    """For each group the index, in the request's block table, of the first block that is needed."""
    tables: list[list[Any]]
    """For each group the blocks from that one on."""


def held_prefix(
    groups: Sequence[KvGroup], block_hashes: Sequence[Any], find_cached: FindCached, *, has_drafts: bool = False
) -> HeldPrefix:
    """The longest one. All groups have blocks of the same length, one for each hash."""
    block_tokens = groups[0].block_tokens
    full = [index for index, group in enumerate(groups) if not group.window_tokens]
    whole = _from_the_first(full, block_hashes, find_cached)
    count = len(whole) if full else len(block_hashes)
    count = max(0, count - 1) if has_drafts else count
    known: dict[tuple[int, int], Any] = {}

    def cached(group: int, block: int) -> Any:
        if (group, block) not in known:
            found = find_cached(block_hashes[block], [group])
            known[group, block] = found[0] if found else None
        return known[group, block]

    def needed(group: int) -> range:
        part = groups[group].needed(0, count * block_tokens)
        return range(part.start, part.stop)

    def last_missing(group: int) -> int:
        """The last block that the group needs and the cache has not; -1 if it has all. Each block is looked up once."""
        return next((block for block in reversed(needed(group)) if cached(group, block) is None), -1)

    windowed = [index for index, group in enumerate(groups) if group.window_tokens]
    while count:
        if any(group.loses_first_needed(count * block_tokens) for group in groups):
            count -= 1  # the asking engine would have no place for the first block
            continue
        missing = max(map(last_missing, windowed), default=-1)
        if missing < 0:
            break
        count = missing
    firsts = [0] * len(groups)
    tables: list[list[Any]] = [[] for _ in groups]
    for place, group in enumerate(full):
        tables[group] = [blocks[place] for blocks in whole[:count]]
    for group in windowed if count else ():
        firsts[group] = needed(group).start
        tables[group] = [cached(group, block) for block in needed(group)]
    return HeldPrefix(count, firsts, tables)


def _from_the_first(group_ids: list[int], block_hashes: Sequence[Any], find_cached: FindCached) -> list[Sequence[Any]]:
    found = []
    for block_hash in block_hashes if group_ids else ():
        blocks = find_cached(block_hash, group_ids)
        if blocks is None:
            break
        found.append(blocks)
    return found
