"""How ``kv_transfer_params`` carry the addresses of an engine's messengers. Pure.

Routers pass on a host and a port, a string and a number, without parsing them. An engine with one messenger gives
exactly these; one with several gives ``host:port,host:port,…`` as its host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kv_connector.configuration.host_addresses import bare, port_of

HOST_LENGTH_MAX = 255
MESSENGERS_MAX = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """The address at which one messenger listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Messengers = tuple[Address, ...]
"""All messengers of one engine, in the order of its ranks."""


def host_text(addresses: Sequence[Address]) -> str:
    """The value of ``remote_host``; the port of the first goes into ``remote_port``."""
    return addresses[0].host if len(addresses) == 1 else ",".join(map(str, addresses))


def read_list(text: str) -> Messengers:
    """Parses one ``host:port`` or several, separated by commas; empty if one of them is not an address."""
    read = [_read_one(part) for part in text.split(",", MESSENGERS_MAX)]
    return tuple(address for address in read if address) if all(read) else ()


def is_host(text: str) -> bool:
    """Whether this may be a name or an address: a client's text, which is dialled and goes into log lines."""
    return 0 < len(text) <= HOST_LENGTH_MAX and text.isprintable() and not any(each in " ,/" for each in text)


def _read_one(text: str) -> Address | None:
    host, _, port = text.rpartition(":")
    number = port_of(port)
    return Address(bare(host), number) if number and is_host(bare(host)) else None
