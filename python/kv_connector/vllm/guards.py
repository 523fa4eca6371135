"""Keeps exceptions of the connector from the engine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from kv_connector.vllm.vllm_api import init_logger

logger = init_logger("vllm.kv_messenger")

Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(otherwise: Callable[[], object]) -> Callable[[Method], Method]:
    """Makes a method return ``otherwise()`` when it raises: vLLM ends the engine on any exception of a connector."""

    def guard(method: Method) -> Method:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> object:
            try:
                return method(*args, **kwargs)
            except Exception:
                logger.exception("%s failed; the engine goes on", method.__name__)
                return otherwise()

        return cast("Method", call)

    return guard
