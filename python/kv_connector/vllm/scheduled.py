"""What one step's scheduler output says, and what a prefiller can be asked to enqueue. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.metadata import PlacedBlocks
from kv_connector.vllm.request_numbers import shown

CACHE_SALT_LENGTH_MAX = 1024
"""In UTF-16 code units, as in the protocol."""
PRIORITY_MAX = (1 << 31) - 1


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


def unfit_to_be_enqueued(request: Any) -> str:
    """Why a prefiller cannot enqueue this request's prompt, in one sentence; "" if it can."""
    beyond_ids = [name for name in ("lora_request", "mm_features", "prompt_embeds") if getattr(request, name, None)]
    if beyond_ids or request.prompt_token_ids is None:
        return (
            f"kv_transfer_params.prefiller sends token ids only and the prompt has"
            f" {' and '.join(beyond_ids) or 'none'}, expected plain tokens: send the request to both sides"
        )
    salt = getattr(request, "cache_salt", None) or ""
    if not salt.isprintable() or len(salt.encode("utf-16-le")) // 2 > CACHE_SALT_LENGTH_MAX:
        return (
            f"cache_salt is {shown(salt)!r}, expected one line of at most {CACHE_SALT_LENGTH_MAX} characters for a"
            " prompt that a prefiller enqueues: shorten it, or send the request to both sides"
        )
    priority = getattr(request, "priority", 0)
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        return (
            f"priority is {priority}, expected {-PRIORITY_MAX} to {PRIORITY_MAX} for a prompt that a prefiller"
            " enqueues: choose another, or send the request to both sides"
        )
    return ""
