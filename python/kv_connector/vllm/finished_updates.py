"""The end of a trainer's update and the version that it gives, in one call of vLLM's engine core.

vLLM's HTTP process makes two calls of them. Another trainer's update may come between, and be called by the version of
the one before, for good if the two versions come in the other order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

FINISH = "finish_weight_update"
VERSION = "weight_version"
"""The argument of the engine core's call; the workers' method has none."""
_PATCHED = "_kv_messenger_finishes_in_one_call"


def finish_in_one_call(client_class: Any) -> None:
    """Patches the class of vLLM's HTTP process once; raises AttributeError if this vLLM has another one.

    The engine core has to be one of ``weights_at_rest``, which takes the version off.
    """
    if _PATCHED in vars(client_class):
        return
    original = client_class.finish_weight_update
    if not hasattr(client_class, "collective_rpc"):
        raise AttributeError(f"{client_class.__name__} has no collective_rpc")

    @functools.wraps(original)
    async def finish_weight_update(client: Any, weight_version: str | None = None) -> None:
        if client.vllm_config.parallel_config.data_parallel_size > 1:  # engines on other hosts may lack this package
            await original(client, weight_version)
        else:
            await client.collective_rpc(FINISH, kwargs={VERSION: weight_version})

    setattr(client_class, _PATCHED, True)
    client_class.finish_weight_update = finish_weight_update


def names_itself(method: object, kwargs: Mapping[str, Any] | None) -> bool:
    """Whether the call ends an update and says by which version, or that there is none: no other call names it."""
    return method == FINISH and VERSION in (kwargs or {})


def version_given(method: object, kwargs: Mapping[str, Any] | None) -> str | None:
    """The version that a call which ends an update gives; None for any other call."""
    version = (kwargs or {}).get(VERSION) if method == FINISH else None
    return None if version is None else str(version)


def finish_and_name(call: Callable[..., Any], core: Any, timeout: float | None, args: Any, kwargs: Any) -> Any:
    """Ends the update by ``call``, and names it where that did not fail."""
    answers = call(core, FINISH, timeout, args, {name: each for name, each in kwargs.items() if name != VERSION})
    if (version := version_given(FINISH, kwargs)) is not None:
        core.set_weight_version(version)
    return answers
