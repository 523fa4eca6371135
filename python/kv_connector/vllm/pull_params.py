"""Parses the parts of ``kv_transfer_params`` that concern pulls. Pure; the input is untrusted.

A pull takes the beginning of a prompt from the prefix cache of another engine. ``remote_kv_source`` names that engine,
alone or beside ``do_remote_decode``. The engine that holds the KV gets the question as a request of its own, a carrier,
which its messenger sends to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kv_connector.configuration.host_addresses import PORT_MAX
from kv_connector.vllm.messenger_addresses import Address, Messengers, is_host, read_list
from kv_connector.vllm.request_name import is_transfer_id

SOURCE = "remote_kv_source"
ASKED_TRANSFER = "asked_by_transfer"
ASKED_DIGEST = "asked_digest"
DIGEST_LENGTH = 32
VALUE_LENGTH_MAX = 80


@dataclass(frozen=True, slots=True)
class Pull:
    """The beginning of the prompt may be fetched from the engine whose messengers these are."""

    messengers: Messengers


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The hint cannot be used; ``reason`` is one sentence for the log."""

    reason: str


@dataclass(frozen=True, slots=True)
class Carrier:
    """The request carries another engine's question: how much of this prompt is in the prefix cache?"""

    transfer: str
    digest: str


def read_pull(params: object) -> Pull | Unreadable | None:
    """The engine to pull from; None if the request names none or fetches all of its prompt. Never raises."""
    if not isinstance(params, Mapping) or params.get(SOURCE) is None or params.get("do_remote_prefill"):
        return None
    source = params[SOURCE]
    if not isinstance(source, Mapping):
        return _unreadable("", source, "an object with remote_host and remote_port")
    host, port = source.get("remote_host"), source.get("remote_port")
    if not isinstance(host, str) or not ("," in host or is_host(host)):
        return _unreadable(".remote_host", host, "the host of that engine's messenger")
    if "," in host:
        messengers = read_list(host)
        return Pull(messengers) if messengers else _unreadable(".remote_host", host, "a host, or a list of 'host:port'")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= PORT_MAX:
        return _unreadable(".remote_port", port, f"an integer from 1 to {PORT_MAX}")
    return Pull((Address(host, port),))


def read_carrier(params: object) -> Carrier | None:
    """The question that the request carries; None if it carries none. Never raises."""
    if not isinstance(params, Mapping):
        return None
    transfer, digest = params.get(ASKED_TRANSFER), params.get(ASKED_DIGEST)
    if not is_transfer_id(transfer) or not isinstance(digest, str) or len(digest) != DIGEST_LENGTH:
        return None
    return Carrier(str(transfer), digest)


def _unreadable(field: str, value: object, expected: str) -> Unreadable:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or nested as deep
        text = f"a {type(value).__name__}"
    text = text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 3] + "..."
    return Unreadable(f"kv_transfer_params.{SOURCE}{field} is {text}, expected {expected}: correct the router")
