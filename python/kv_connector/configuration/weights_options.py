"""The options of a messenger of weights: those of any messenger, with the secret and the metrics page of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from kv_connector.configuration import option_variables
from kv_connector.configuration import shared_secret as secrets
from kv_connector.configuration.option_values import Place, checked
from kv_connector.configuration.options import OPTION_SPECS, VLLM_OPTIONS_PLACE, Options, parse_options

LOOPBACK = "127.0.0.1"
SECRET = "weights_secret"
_OF_THE_KV_CACHE = (
    *("shared_secret", "shared_secret_file", "listen_port", "data_port", "metrics_port"),
    *("advertise_port", "advertise_data_ports"),
)
"""What a KV cache's messenger in the same process has for itself."""
_ADDRESSES = ("listen_host", "advertise_host", "data_hosts")


def parse_weights_options(
    given: Mapping[str, object],
    *,
    sends: bool,
    engine_id: str,
    environment: Mapping[str, str] = os.environ,
    listen_port: int = 0,
) -> Options:
    """Checks the options of a sender, which listens, or of a server; raises OptionError like ``parse_options``.

    Without ``weights_secret`` the messenger has loopback addresses, whatever the options are.
    """
    secret = secrets.secret_of(_text(SECRET, given, environment), _text(f"{SECRET}_file", given, environment), SECRET)
    left_out = _OF_THE_KV_CACHE if secret else _OF_THE_KV_CACHE + _ADDRESSES
    variables = {option_variables.variable_of(name) for name in left_out}
    variables |= secrets.VARIABLES
    values: dict[str, Any] = {name: value for name, value in given.items() if name not in left_out}
    options = parse_options(
        values | {"shared_secret": secret, "listen_port": listen_port},
        role="prefiller" if sends else "decoder",
        engine_id=engine_id,
        environment={name: value for name, value in environment.items() if name not in variables},
    )
    return dataclasses.replace(options, metrics_port=-1 if sends else options.weights_metrics_port)


def _text(name: str, given: Mapping[str, object], environment: Mapping[str, str]) -> str:
    if name in given:
        return str(checked(Place.configuration(name, VLLM_OPTIONS_PLACE), OPTION_SPECS[name], given[name]))
    return environment.get(option_variables.variable_of(name), "")
