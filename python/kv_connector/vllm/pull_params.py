"""Parses the parts of ``kv_transfer_params`` that concern pulls. Pure; the input is untrusted.

A pull takes the beginning of a prompt from the prefix cache of another engine. ``remote_kv_source`` names that engine,
alone or beside ``do_remote_decode``. The engine that holds the KV gets the question as a request of its own, a carrier,
which its messenger sends to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kv_connector.pulls.pull_hint import Pull, Unreadable, read_hint
from kv_connector.vllm.request_name import is_transfer_id

ASKED_TRANSFER = "asked_by_transfer"
ASKED_DIGEST = "asked_digest"
DIGEST_LENGTH = 32


@dataclass(frozen=True, slots=True)
class Carrier:
    """The request carries another engine's question: how much of this prompt is in the prefix cache?"""

    transfer: str
    digest: str


def read_pull(params: object) -> Pull | Unreadable | None:
    """The engine to pull from; None if the request names none or fetches all of its prompt. Never raises."""
    if isinstance(params, Mapping) and params.get("do_remote_prefill"):
        return None
    return read_hint(params, "kv_transfer_params")


def read_carrier(params: object) -> Carrier | None:
    """The question that the request carries; None if it carries none. Never raises."""
    if not isinstance(params, Mapping):
        return None
    transfer, digest = params.get(ASKED_TRANSFER), params.get(ASKED_DIGEST)
    if not is_transfer_id(transfer) or not isinstance(digest, str) or len(digest) != DIGEST_LENGTH:
        return None
    return Carrier(str(transfer), digest)
