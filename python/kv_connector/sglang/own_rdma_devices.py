"""SGLang's own argument for RDMA devices, as the backend's option ``verbs_devices``. Nothing is asked of a device."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kv_connector.configuration.option_rules import HOSTS_MAX
from kv_connector.configuration.option_values import shown
from kv_connector.configuration.options import Options
from kv_connector.exceptions import OptionError

ARGUMENT = "--disaggregation-ib-device"


def with_own_devices(options: Options, kv_args: Any, logger: logging.Logger) -> Options:
    """The options, with the devices that the argument names for the rank's GPU where ``verbs_devices`` names none.

    Raises OptionError for a text that SGLang's other backends would not read either.
    """
    text = (kv_args.ib_device or "").strip()
    if not text:
        return options
    if "verbs" not in options.transports:
        logger.warning(
            "%s is %s and changes nothing: transports are %s, and devices are named for verbs alone",
            *(ARGUMENT, shown(text), ", ".join(options.transports)),
        )
        return options
    devices = _of_gpu(text, int(kv_args.gpu_id or 0))
    if not options.verbs_devices:
        logger.info("RDMA devices %s are used, which %s names", ", ".join(devices), ARGUMENT)
        return dataclasses.replace(options, verbs_devices=devices)
    if options.verbs_devices != devices:
        logger.warning(
            "option verbs_devices names %s, and %s names %s: those of verbs_devices are used; name them once",
            *(", ".join(options.verbs_devices), ARGUMENT, ", ".join(devices)),
        )
    return options


def _of_gpu(text: str, gpu: int) -> tuple[str, ...]:
    names = _entry(text, gpu) if text.startswith("{") or text.endswith(".json") else text
    devices = tuple(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    if not 0 < len(devices) <= HOSTS_MAX:
        raise OptionError(
            f"{ARGUMENT} names {len(devices)} devices for GPU {gpu} ({shown(names)}), expected 1 to {HOSTS_MAX}: name"
            " those that are nearest to it"
        )
    return devices


def _entry(text: str, gpu: int) -> str:
    """The names for one GPU, by an object in the argument itself or in the file that it names."""
    expected = 'expected an object of GPU numbers and names like \'{"0": "mlx5_0,mlx5_1"}\''
    try:
        given = json.loads(text if text.startswith("{") else Path(text).read_text(encoding="utf-8"))
    except OSError as fault:
        raise OptionError(f"{ARGUMENT} is the file {text}, which cannot be read ({fault.strerror}): fix it") from fault
    except (ValueError, RecursionError) as fault:
        raise OptionError(f"{ARGUMENT} is {shown(text)}, which is not JSON ({fault}), {expected}") from fault
    entry = given.get(str(gpu)) if isinstance(given, Mapping) else None
    if not isinstance(entry, str):
        known = ", ".join(given) if isinstance(given, Mapping) else type(given).__name__
        raise OptionError(f"{ARGUMENT} has no names for GPU {gpu} ({known}), {expected}: add an entry for it")
    return entry
