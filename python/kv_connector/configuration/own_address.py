"""The address by which other machines reach this one."""

from __future__ import annotations

import socket

from kv_connector.exceptions import OptionError

AUTO = "auto"
"""Stands for this machine's address on its default route."""
_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Documentation addresses (RFC 5737, RFC 3849): no machine has them, so packets to them take the default route."""
_DISCARD_PORT = 9


def outward_address() -> str:
    """This machine's address on its default route, IPv4 first. Sends no packet. Raises OptionError."""
    for family, far_away in _FAR_AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as end:
                end.connect((far_away, _DISCARD_PORT))
                return str(end.getsockname()[0])
        except OSError:
            continue
    raise OptionError(
        "option 'listen_host' is 'auto', and no default route leads out of this machine, expected one: name the address"
        " that peers reach it by"
    )
