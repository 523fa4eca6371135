"""What a prefix cache holds of a prompt is found as the definition says it, for groups of every kind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kv_connector.vllm.held_prefix import held_prefix
from kv_connector.vllm.kv_groups import KvGroup

BLOCK_TOKENS = 4


def group(kind: str, tokens: int = 0) -> KvGroup:
    return KvGroup((f"{kind} {tokens}",), BLOCK_TOKENS, tokens, chunked=kind == "chunk")


FULL = group("full")
MODELS = [
    [FULL],
    [FULL, FULL],
    *([FULL, group("window", tokens)] for tokens in (1, 2, 3, 4, 5, 6, 8, 9, 30)),
    *([FULL, group("chunk", tokens)] for tokens in (4, 8, 16)),
    [group("window", 6), FULL, group("window", 11)],
    [group("window", 6)],
    [group("window", 6), group("window", 14)],
]


def by_definition(groups: list[KvGroup], cached: set[tuple[int, int]], count: int, *, drafts: bool = False) -> int:
    """The most blocks of which each group has what the last token attends to, and the other engine a place for it.

    With drafts the block behind them has the token that follows.
    """
    if drafts:
        full = [index for index, each in enumerate(groups) if each.kind == "full"]
        behind = (n for n in range(count) if any((index, n) not in cached for index in full))
        count = max(0, next(behind, count) - 1)

    def fits(blocks: int) -> bool:
        tokens = blocks * BLOCK_TOKENS
        has_place = not any(each.loses_first_needed(tokens) for each in groups)
        return has_place and all(
            (index, block) in cached
            for index, each in enumerate(groups)
            for block in range(each.needed(0, tokens).start, blocks)
        )

    return next(blocks for blocks in range(count, -1, -1) if blocks == 0 or fits(blocks))


@pytest.mark.parametrize("drafts", [False, True], ids=["no drafts", "drafts"])
@pytest.mark.parametrize("groups", MODELS, ids=lambda groups: ", ".join(each.layer_names[0] for each in groups))
def test_should_find_the_most_that_can_be_fetched(groups: list[KvGroup], drafts: bool) -> None:
    draw = random.Random(5)
    lengths = set()
    for _ in range(400):
        count, share = draw.randrange(14), draw.choice([0.5, 0.8, 0.95, 1.0])
        hashes = list(range(count))
        cached = {(at, block) for at in range(len(groups)) for block in hashes if draw.random() < share}

        def find(block_hash: int, group_ids: list[int], cached: set[tuple[int, int]] = cached) -> list[Any] | None:
            keys = [(at, block_hash) for at in group_ids]
            return keys if cached.issuperset(keys) else None

        found = held_prefix(groups, hashes, find, has_drafts=drafts)
        assert found.block_count == by_definition(groups, cached, count, drafts=drafts)
        for at, each in enumerate(groups):
            needed = each.needed(0, found.block_count * BLOCK_TOKENS) if found.block_count else slice(0, 0)
            assert found.firsts[at] == needed.start
            assert found.tables[at] == [(at, block) for block in range(needed.start, needed.stop)]
        lengths.add(found.block_count)
    everything = {(at, block) for at in range(len(groups)) for block in range(14)}
    assert lengths == {by_definition(groups, everything, count, drafts=drafts) for count in range(14)}
