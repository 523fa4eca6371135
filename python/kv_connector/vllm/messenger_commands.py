"""The commands of docs/boundary.md that carry what the scheduler's half has decided. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.runtime import commands
from kv_connector.runtime.commands import ChunkPages, FetchPages, PrefillerAddress
from kv_connector.vllm.kv_groups import GroupPages
from kv_connector.vllm.metadata import Chunk, Fetch, Offer
from kv_connector.vllm.proof_messages import ProofTally


def chunk_of_step(chunk: Chunk, groups: Sequence[GroupPages]) -> commands.Chunk:
    """One chunk of a step."""
    placed = [(pages, chunk.groups[pages.table]) for pages in groups]
    return commands.Chunk(
        request=chunk.request,
        transfer=chunk.transfer,
        prompt_digest=chunk.prompt_digest,
        prompt_tokens=chunk.prompt_tokens,
        cached_tokens=chunk.cached_tokens,
        first_token=chunk.first_token,
        end_token=chunk.end_token,
        groups=[ChunkPages(of.first * pages.per_block, pages.pages(of.blocks)) for pages, of in placed],
    )


def fetch_command(
    fetch: Fetch, messengers: Messengers, limit_seconds: float, groups: Sequence[GroupPages]
) -> commands.Fetch:
    """Asks these messengers for the KV; ``limit_seconds`` is 0 for the messenger's own limit."""
    needed = [pages.needed(fetch.groups[pages.table], fetch.first_token, fetch.prompt_tokens) for pages in groups]
    enqueued = fetch.prompt_token_ids is not None
    return commands.Fetch(
        request=fetch.request,
        transfer=fetch.transfer,
        prompt_digest=fetch.prompt_digest,
        prefillers=prefillers(messengers, fetch.prefiller_engine_id),
        prompt_tokens=fetch.prompt_tokens,
        first_token=fetch.first_token,
        groups=[FetchPages(pages) for pages in needed],
        limit_millis=round(limit_seconds * 1000),
        prompt_token_ids=list(fetch.prompt_token_ids) if fetch.prompt_token_ids is not None else None,
        cache_salt=fetch.cache_salt if enqueued else None,
        priority=fetch.priority if enqueued else None,
        answer_micros=round(fetch.answer_seconds * 1e6) if fetch.answer_seconds else None,
        pages_micros=round(fetch.pages_seconds * 1e6) if fetch.answer_seconds else None,
    )


def offer_command(offer: Offer, groups: Sequence[GroupPages], *, asked: bool) -> commands.Offer:
    """Answers an ask; an offer of something names the pages of all groups, of a window those in it."""
    placed = [(pages, offer.groups[pages.table]) for pages in groups if offer.held_tokens]
    return commands.Offer(
        request=offer.request,
        transfer=offer.transfer,
        prompt_digest=offer.prompt_digest,
        asked=asked,
        held_tokens=offer.held_tokens,
        groups=[ChunkPages(of.first * pages.per_block, pages.pages(of.blocks)) for pages, of in placed],
        reason=offer.reason,
    )


def comparison_command(tally: ProofTally) -> commands.Command:
    """What a comparison of last tokens came to, or a fetch that was refused because of one."""
    if tally.outcome == "refused":
        return commands.Refuted(1)
    return commands.compared(tally.outcome, tally.worst, prefillers([tally.prefiller])[0])


def prefillers(messengers: Sequence[Address], engine_id: str = "") -> list[PrefillerAddress]:
    """The messengers of a prefiller, in the form of a command."""
    return [PrefillerAddress(each.host, each.port, engine_id) for each in messengers]
