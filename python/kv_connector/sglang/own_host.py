"""The address of this host as SGLang finds it, for a messenger that peers on other hosts are to reach."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping

from kv_connector.configuration.option_variables import variable_of
from kv_connector.configuration.own_address import outward_address
from kv_connector.exceptions import OptionError

logger = logging.getLogger("sglang.srt.kv_messenger")

_ADDRESSES = ("listen_host", "advertise_host", "data_hosts")
"""Options that say where peers reach this host: one is enough to leave all of it to the user."""
_HOST_VARIABLES = ("SGLANG_HOST_IP", "HOST_IP")
"""SGLang's own variables for it, in SGLang's order."""
_NETWORK_VARIABLE = "SGLANG_LOCAL_IP_NIC"


def own_host(given: Mapping[str, object], environment: Mapping[str, str]) -> str:
    """The address to listen on where the user names none; "" = the default, loopback."""
    if any(given.get(name) or environment.get(variable_of(name)) for name in _ADDRESSES):
        return ""
    for variable in _HOST_VARIABLES:
        if address := environment.get(variable, ""):
            _log(f"option listen_host is not set: the messenger listens on {address}, which {variable} names")
            return address
    if interface := environment.get(_NETWORK_VARIABLE, ""):
        _log(
            f"option listen_host is not set: the messenger listens on loopback, because {_NETWORK_VARIABLE} names"
            f" {interface} and no address; set listen_host to the address of {interface}"
        )
        return ""
    try:
        address = outward_address()
    except OptionError:
        _log("option listen_host is not set, and no default route leads out: the messenger listens on loopback")
        return ""
    _log(
        f"option listen_host is not set: the messenger listens on {address}, by which the default route leaves; set"
        " listen_host to 127.0.0.1 to stay on loopback"
    )
    return address


@functools.cache
def _log(sentence: str) -> None:
    """Once for each in a process: an engine reads its options several times."""
    logger.info("%s", sentence)
