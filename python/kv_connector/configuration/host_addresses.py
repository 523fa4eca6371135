"""What an address is good for. Addresses to listen on are judged by what they resolve to, as the listener does.

The text of a name says nothing: on Debian a host's own name is 127.0.1.1. Addresses for *peers* are judged by their
text alone, because a peer resolves a name by its own name service.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

PORT_MAX = 65_535

LookUp = Callable[[str], list[str]]


def addresses_of(host: str) -> list[str]:
    """The addresses of a name, or the address itself; none if the name is unknown here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(address[0]).partition("%")[0] for *_, address in found]


def port_of(text: str) -> int | None:
    """The port in a text of digits; None if it names none."""
    is_short = text.isascii() and text.isdecimal() and len(text) <= len(str(PORT_MAX))
    return int(text) if is_short and int(text) <= PORT_MAX else None


def bare(host: str) -> str:
    """An IPv6 address without the brackets of a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_any_address(host: str, look_up: LookUp = addresses_of) -> bool:
    """Whether it is a wildcard such as 0.0.0.0, to which no peer can connect."""
    return not host or any(ipaddress.ip_address(one).is_unspecified for one in _judged(host, look_up))


def is_loopback(host: str, look_up: LookUp = addresses_of) -> bool:
    """Whether only processes of this machine can connect to a listener there; False for an unknown name."""
    if host == "localhost":
        return True
    judged = _judged(host, look_up)
    return bool(judged) and all(ipaddress.ip_address(one).is_loopback for one in judged)


def says_loopback(host: str) -> bool:
    """Whether an address for peers is loopback by its text: on another machine it is that machine itself."""
    return is_loopback(host, lambda _: [])


def _judged(host: str, look_up: LookUp) -> list[str]:
    try:
        return [str(ipaddress.ip_address(bare(host).partition("%")[0]))]
    except ValueError:
        return look_up(host)
