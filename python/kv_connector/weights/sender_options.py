"""The options of a sender of weights: where it listens, and that it has a secret beyond loopback."""

from __future__ import annotations

import os
from collections.abc import Mapping

from kv_connector.configuration.engine_keys import EngineKeys
from kv_connector.configuration.host_addresses import port_of
from kv_connector.configuration.option_values import shown
from kv_connector.configuration.options import Options
from kv_connector.configuration.weights_options import LOOPBACK, SECRET, parse_weights_options
from kv_connector.exceptions import OptionError


def sender_options(listen: str, given: Mapping[str, object], named: str) -> Options:
    """The options of a sender that listens at ``listen``, HOST, HOST:PORT or "" for a port of 127.0.0.1.

    ``given`` are options of docs/options.md, which count before the environment's. Raises OptionError; ``named`` is how
    the user calls ``listen``.
    """
    host, port = listening(listen, named)
    place = {"listen_host": host} if host else {}
    options = parse_weights_options(
        {**given, **place}, sends=True, engine_id=f"weights-{os.getpid()}", listen_port=port
    )
    if host not in ("", LOOPBACK) and not options.shared_secret:
        raise OptionError(f"{named} is {shown(listen)}, which needs a {SECRET}: set KV_MESSENGER_WEIGHTS_SECRET_FILE")
    return options


def keys_of(options: Options) -> EngineKeys:
    """The keys of the servers that a sender writes to."""
    return EngineKeys(options.engine_api_key, options.engine_admin_api_key)


def listening(text: str, named: str) -> tuple[str, int]:
    """The host and port of ``HOST`` or ``HOST:PORT``; "" and 0 where they are left open. Raises OptionError."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return text, 0
    number = port_of(port)
    if not number:
        raise OptionError(f"{named} is {shown(text)}, expected HOST or HOST:PORT: correct it")
    return host.removeprefix("[").removesuffix("]"), number
