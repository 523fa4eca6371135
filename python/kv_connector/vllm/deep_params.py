"""Keeps a client's ``kv_transfer_params`` from ending the engine by how deep they are nested. Engine core's thread.

vLLM sends the sampling parameters of a new request, with all that the client gave, to its workers by ``pickle``, which
raises some hundred levels deep, and an exception there ends the engine. No worker reads ``kv_transfer_params``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

LEVELS_MAX = 32
"""More than any router nests, and far less than what Python cannot copy."""
_NAME = "kv_transfer_params"
TOO_DEEP = (
    f"request %s has {_NAME} of more than {LEVELS_MAX} levels, expected at most {LEVELS_MAX}: they are read here and"
    " kept from the workers; look at the router"
)


def is_deep(value: object) -> bool:
    """Whether lists and objects lie in each other beyond LEVELS_MAX; without recursion."""
    level: list[object] = [value]
    for _ in range(LEVELS_MAX):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def kept_from_workers(request: Any) -> bool:
    """Takes parameters that are nested too deep out of what vLLM sends to its workers; whether there were any.

    The request gets sampling parameters of its own: a caller of ``LLM`` may use one object for several requests.
    """
    sampling = getattr(request, "sampling_params", None)
    extra = getattr(sampling, "extra_args", None)
    if not extra or not is_deep(extra.get(_NAME)):
        return False
    request.sampling_params = copy.copy(sampling)
    request.sampling_params.extra_args = {name: value for name, value in extra.items() if name != _NAME}
    return True
