"""Checks SGLang's first pass that computes a prompt: its own warm-up request, unless that is switched off."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kv_connector.memory.first_pass import FirstPass


def run_checked(
    first_pass: FirstPass, forward: Callable[[], Any], on_stream: Callable[[], AbstractContextManager[Any]]
) -> Any:
    """Runs a pass that computes a prompt, and checks it if none was checked; returns the result of ``forward``.

    ``on_stream`` is a context in which work is queued on the stream of the pass. Used by the scheduler's thread only.
    """
    if not first_pass.is_due:
        return forward()
    with on_stream():
        first_pass.begin()
    try:
        result = forward()
    except BaseException:
        with on_stream():
            first_pass.fail()
        raise
    with on_stream():
        first_pass.end()
    return result
