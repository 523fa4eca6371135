"""The commands of docs/boundary.md that say what the scheduler's half has decided. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector._facade import Command
from kv_connector.comparison_counts import compared_command, refuted_command
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.messenger_addresses import Address, Messengers
from kv_connector.vllm.metadata import Chunk, Decline, Expect, Fetch, PlacedBlocks
from kv_connector.vllm.proof_messages import ProofTally


def describe(chunk: Chunk, groups: Sequence[GroupPages]) -> Command:
    """One chunk of a step."""
    return {
        "request": chunk.request,
        "transfer": chunk.transfer,
        "promptTokens": chunk.prompt_tokens,
        "cachedTokens": chunk.cached_tokens,
        "firstToken": chunk.first_token,
        "endToken": chunk.end_token,
        "groups": [_placed(pages, chunk.groups[pages.table]) for pages in groups],
        "promptDigest": chunk.prompt_digest,
    }


def fetch_command(
    fetch: Fetch, messengers: Messengers, limit_seconds: float, groups: Sequence[GroupPages]
) -> dict[str, Any]:
    """Asks these messengers for the KV; ``limit_seconds`` is 0 for the messenger's own limit."""
    command: dict[str, Any] = {
        "do": "fetch",
        "request": fetch.request,
        "transfer": fetch.transfer,
        "prefillers": named(messengers, fetch.prefiller_engine_id),
        "promptTokens": fetch.prompt_tokens,
        "firstToken": fetch.first_token,
        "groups": [
            {"pages": pages.needed(fetch.groups[pages.table], fetch.first_token, fetch.prompt_tokens)}
            for pages in groups
        ],
        "limitMillis": round(limit_seconds * 1000),
        "promptDigest": fetch.prompt_digest,
    }
    if fetch.prompt_token_ids is not None:
        command["promptTokenIds"] = list(fetch.prompt_token_ids)
        command["cacheSalt"] = fetch.cache_salt
        command["priority"] = fetch.priority
    return command


def comparison_command(tally: ProofTally) -> Command:
    """What a comparison of last tokens came to, or a fetch that was refused because of one."""
    if tally.outcome == "refused":
        return refuted_command(1)
    return compared_command(tally.outcome, tally.worst, named([tally.prefiller])[0])


def worded(of: Decline | Expect) -> dict[str, Any]:
    """The fields by which a transfer and its prefiller are named."""
    return {
        "transfer": of.transfer.id,
        "promptDigest": of.transfer.prompt_digest,
        "prefillers": named(of.messengers),
    }


def named(messengers: Sequence[Address], engine_id: str = "") -> list[dict[str, Any]]:
    """The messengers of a prefiller, in the form of a command."""
    return [{"host": each.host, "port": each.port, "engineId": engine_id} for each in messengers]


def _placed(pages: GroupPages, placed: PlacedBlocks) -> dict[str, Any]:
    return {"firstPage": placed.first * pages.per_block, "pages": pages.pages(placed.blocks)}
