"""A plug-in of SGLang that stamps, whatever the transfer backend, when a forward pass ended and when KV was ready.

Two lines a request, with one monotonic clock for all processes of a machine: the prefiller's at the end of each forward
pass that computed some of the prompt (the last one counts), the decoder's when it takes the request into its batch.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def stamp(what: str, room: int | None) -> None:
    if room:  # health checks have none
        print(f"stopwatch {what} room={room} at_ns={time.monotonic_ns()}", file=sys.stderr, flush=True)


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def after_forward(result: Any, scheduler: Any, batch: Any, *rest: Any, **named: Any) -> None:
        for request in batch.reqs:
            stamp("forward_end", request.bootstrap_room)

    def after_commit(result: Any, queue: Any, decode_request: Any) -> None:
        stamp("ready", decode_request.req.bootstrap_room)

    # Each of them runs in one role only: a decoder's run_batch stamps too, and that is not read.
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_batch", after_forward, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req", after_commit, HookType.AFTER
    )
