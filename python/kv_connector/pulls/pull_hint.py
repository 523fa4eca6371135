"""Parses how a request names engines from whose prefix cache its prompt may begin. Pure; the input is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kv_connector.configuration.host_addresses import PORT_MAX
from kv_connector.configuration.messenger_addresses import Address, Messengers, is_host, read_list

SOURCE = "remote_kv_source"
SOURCES_MAX = 16
"""How many engines a request may name."""
VALUE_LENGTH_MAX = 80


@dataclass(frozen=True, slots=True)
class Pull:
    """The beginning of the prompt may be fetched from one of the engines whose messengers these are."""

    sources: tuple[Messengers, ...]
    """At least one, each once."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The hint cannot be used; ``reason`` is one sentence for the log."""

    reason: str


def read_hint(params: object, place: str) -> Pull | Unreadable | None:
    """The engine, or the engines, named in these parameters of a request; None if none is. Never raises.

    ``place`` is the client's name of the parameters, for the sentence.
    """
    if not isinstance(params, Mapping) or params.get(SOURCE) is None:
        return None
    source, place = params[SOURCE], f"{place}.{SOURCE}"
    if not isinstance(source, list):
        read = _read_source(source, place)
        return read if isinstance(read, Unreadable) else Pull((read,))
    if not 0 < len(source) <= SOURCES_MAX:
        return Unreadable(
            f"{place} is a list of {len(source)}, expected 1 to {SOURCES_MAX} engines: correct the router"
        )
    sources: dict[Messengers, None] = {}
    for index, each in enumerate(source):
        read = _read_source(each, f"{place}[{index}]")
        if isinstance(read, Unreadable):
            return read
        sources[read] = None
    return Pull(tuple(sources))


def _read_source(source: object, place: str) -> Messengers | Unreadable:
    if not isinstance(source, Mapping):
        return _unreadable(place, source, "an object with remote_host and remote_port, or a list of them")
    host, port = source.get("remote_host"), source.get("remote_port")
    if not isinstance(host, str) or not ("," in host or is_host(host)):
        return _unreadable(f"{place}.remote_host", host, "the host of that engine's messenger")
    if "," in host:
        messengers, expected = read_list(host), "a host, or a list of 'host:port'"
        return messengers or _unreadable(f"{place}.remote_host", host, expected)
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port <= PORT_MAX:
        return _unreadable(f"{place}.remote_port", port, f"an integer from 1 to {PORT_MAX}")
    return (Address(host, port),)


def _unreadable(field: str, value: object, expected: str) -> Unreadable:
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or nested as deep
        text = f"a {type(value).__name__}"
    text = text if len(text) <= VALUE_LENGTH_MAX else text[: VALUE_LENGTH_MAX - 3] + "..."
    return Unreadable(f"{field} is {text}, expected {expected}: correct the router")
