"""What an address is good for, by its text."""

from __future__ import annotations

import ipaddress


def is_any_address(host: str) -> bool:
    """Whether the address is a wildcard such as 0.0.0.0, to which no peer can connect."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can connect to the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
