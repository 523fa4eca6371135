"""What the prefiller is notified of when a request will never ask it for the KV that it was named for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kv_connector.runtime.commands import Reject
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.request_name import BY_PROMPT
from kv_connector.vllm.transfer_params import Receive, Refused, rejected_transfers


def of_unadmitted(request: Any, ask: object) -> list[Reject]:
    """For vLLM's stand-in for a request that its API server rejected, or whose client left too early."""
    if not isinstance(ask, Receive) or ask.decoder_first:
        return []
    transfers = rejected_transfers(request.kv_transfer_params, request.request_id)
    return [Reject(transfer, prefillers(ask.messengers)) for transfer in transfers]


def of_refused(ask: Refused) -> list[Reject]:
    """For a request that is refused although it names a transfer."""
    named = ask.unfit
    if named is None or named.decoder_first or named.transfer == BY_PROMPT:
        return []
    return [Reject(named.transfer, prefillers(named.messengers))]


def of_queued(request: Any, ask: object, logger: logging.Logger, *, rejected: bool) -> Sequence[Reject]:
    """For a request that is queued and will not be served, because it was ``rejected`` or is refused; logged."""
    if isinstance(ask, Refused):
        return logged([] if rejected else of_refused(ask), logger)
    return logged(of_unadmitted(request, ask), logger)


def logged(found: Sequence[Reject], logger: logging.Logger) -> Sequence[Reject]:
    """The same, after one line in the log."""
    if found:
        names = " or ".join(each.transfer for each in found)
        logger.info("a request never reached this engine, has ended or is refused, transfer %s", names)
    return found
