"""Reads options as an engine would, with the connector's own code and error messages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kv_connector.configuration.option_values import shown
from kv_connector.configuration.options import OPTION_SPECS, PREFILLER_PORT, VLLM_OPTIONS_PLACE, Options, check_options
from kv_connector.exceptions import OptionError
from kv_connector.sglang import engine_facts as sglang_facts
from kv_connector.vllm import CONNECTOR_NAME
from kv_connector.vllm import engine_facts as vllm_facts

ARGUMENT = "--kv-transfer-config"


def of_vllm(text: str) -> Options:
    """The options in a value of ``--kv-transfer-config``, or in a file with that value; raises OptionError."""
    transfer = _object(ARGUMENT, _content(text))
    misplaced = next((name for name in transfer if name in OPTION_SPECS), None)
    if misplaced is not None:
        raise OptionError(
            f"option {misplaced!r} stands in {ARGUMENT} itself, expected in its {VLLM_OPTIONS_PLACE}: move it there"
        )
    if transfer.get("kv_connector") != CONNECTOR_NAME:
        raise OptionError(
            f"kv_connector is {shown(transfer.get('kv_connector'))}, expected {CONNECTOR_NAME!r}: set it, or pass the"
            f" part of {ARGUMENT} that is for this connector"
        )
    transfer_config = SimpleNamespace(
        kv_role=transfer.get("kv_role"),
        kv_connector_extra_config=_object(VLLM_OPTIONS_PLACE, transfer.get(VLLM_OPTIONS_PLACE) or {}),
        engine_id=transfer.get("engine_id") or "doctor",
        kv_port=transfer.get("kv_port", PREFILLER_PORT),
    )
    return vllm_facts.read_options(SimpleNamespace(kv_transfer_config=transfer_config))


def of_sglang(mode: str, environment: Mapping[str, str] = os.environ) -> Options:
    """The options in the environment, for a value of SGLang's ``--disaggregation-mode``; raises OptionError."""
    first_rank = SimpleNamespace(system_dp_rank=0, pp_rank=0, engine_rank=0)
    return sglang_facts.read_options(mode, first_rank, environment)


def none_given() -> Options:
    """The defaults, for a messenger with both roles."""
    return check_options({})


def _content(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as failure:  # a ValueError for no UTF-8, and for a name that no file can have
            reason = failure.strerror if isinstance(failure, OSError) else failure
            raise OptionError(
                f"{ARGUMENT} is {shown(text)}, which is neither a JSON object nor a file that can be read ({reason}):"
                " pass what vllm serve is given, in single quotes"
            ) from failure
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise OptionError(
            f"{ARGUMENT} is no JSON ({fault}): pass what vllm serve is given, in single quotes"
        ) from fault


def _object(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{what} is {shown(value)}, expected a JSON object")
    return value
