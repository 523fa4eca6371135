"""The fetches that the scheduler's half asks of the workers. Used by the engine core's thread only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from logging import Logger
from typing import Any

from kv_connector.runtime.commands import Decline
from kv_connector.vllm.beginnings import part_of
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.fetch_names import FetchNames
from kv_connector.vllm.kv_groups import KvGroup, transferred_tokens
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.metadata import Fetch, Renamed, StepMetadata, Transfer
from kv_connector.vllm.misfits import stands_for_rejected
from kv_connector.vllm.request_numbers import RequestNumbers, shown
from kv_connector.vllm.shadow_fetches import ShadowFetches
from kv_connector.vllm.transfer_params import Receive


def fetch_of(
    request: Any,
    ask: Receive,
    transfer: Transfer,
    number: str,
    tokens: tuple[int, int],
    groups: Sequence[Sequence[int]],
) -> Fetch:
    """The fetch of the ``tokens``, from the first to before the last of these two, into the blocks of ``groups``."""
    return Fetch(
        request=number,
        transfer=transfer.id,
        messengers=ask.messengers,
        prefiller_engine_id=ask.engine_id,
        prompt_tokens=tokens[1],
        first_token=tokens[0],
        groups=groups,
        prompt_token_ids=list(request.prompt_token_ids) if ask.decoder_first else None,
        other_prefillers=ask.other_prefillers,
        prompt_digest=transfer.prompt_digest,
        cache_salt=getattr(request, "cache_salt", None) or "",
        priority=getattr(request, "priority", 0),
    )


def shadow_fetch(
    shadows: ShadowFetches,
    request: Any,
    ask: Receive,
    number: str,
    groups: Sequence[KvGroup],
    names: FetchNames,
    logger: Logger,
) -> Fetch | None:
    """The fetch besides of a request that is computed here; None if it is not compared. No fault harms the request."""
    if request.skip_reading_prefix_cache or stands_for_rejected(request) or names.why_not_held(request, ask):
        return None
    try:
        begun = part_of(request, ask)
        started = shadows.start(begun, ask, number)
        if started is None:
            return None
        asked = replace(ask, messengers=started[0], other_prefillers=())
        tokens = (0, transferred_tokens(groups, begun.num_prompt_tokens))
        return replace(fetch_of(begun, asked, names.of(request, ask), number, tokens, started[1]), shadow=True)
    except Exception:
        logger.exception("request %s is computed here and not compared", shown(request.request_id))
        shadows.drop(number)
        return None


def waiting_outdated(names: FetchNames, gate: FetchGate, meta: StepMetadata) -> list[tuple[Any, Receive]]:
    """This engine has other weights: requests that wait are declined by their names of before.

    Returns those to be expected anew. What is computed by the weights of before is not computed once more by its
    prefiller: such a request is computed here.
    """
    expected = []
    for request, ask, before in names.renamed():
        if meta.expects.pop(request.request_id, None) is None:
            meta.declines.append(Decline(*before, prefillers(ask.messengers)))
        if gate.outdated(request.request_id):
            names.forget(request.request_id)
        else:
            gate.gone(request.request_id)
            expected.append((request, ask))
    return expected


def fetches_renamed(
    names: FetchNames, numbers: RequestNumbers, messenger_count: int, meta: StepMetadata
) -> Sequence[Any]:
    """The same of requests whose KV is being fetched; returns them.

    Several messengers could come to have parts of one request's KV by unlike weights, so those fetches fail.
    """
    renamed = names.renamed_fetches()
    for request, transfer in renamed:
        number = numbers.of(request.request_id)
        meta.renamed[number] = Renamed(number, transfer if messenger_count == 1 else None)
    return [request for request, _ in renamed]
