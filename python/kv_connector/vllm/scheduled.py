"""What one step's scheduler output says. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.metadata import PlacedBlocks


def placed(group: KvGroup, table: Sequence[int], sent_tokens: int, end_token: int) -> PlacedBlocks:
    """The blocks of tokens ``[0, end_token)`` that are not among those of ``[0, sent_tokens)``."""
    first, needed = group.blocks_of(sent_tokens), group.blocks_of(end_token)
    if len(table) < needed:
        raise ValueError(f"{len(table)} blocks hold the tokens before {end_token}, expected {needed}")
    return PlacedBlocks(first, table[first:needed])


def scheduled(scheduler_output: Any) -> Iterator[tuple[str, Sequence[Sequence[int]], bool, int]]:
    """(request, blocks by group, whether these are its whole tables, first token) of each request in the step."""
    for new in scheduler_output.scheduled_new_reqs:
        yield new.req_id, new.block_ids, True, new.num_computed_tokens
    cached = scheduler_output.scheduled_cached_reqs
    for index, request_id in enumerate(cached.req_ids):
        group_blocks = cached.new_block_ids[index] or ()
        whole_table = request_id in cached.resumed_req_ids
        yield request_id, group_blocks, whole_table, cached.num_computed_tokens[index]


def prompt_tokens(scheduler_output: Any) -> int:
    """How many tokens of prompts the step computes, or of prompts and answers that are computed once more.

    A request that goes on with its answer computes its last token, and those that a draft has guessed after it.
    """
    guessed = scheduler_output.scheduled_spec_decode_tokens
    counts = scheduler_output.num_scheduled_tokens.items()
    return sum(count for request_id, count in counts if count > 1 + len(guessed.get(request_id, ())))
