"""Requests that vLLM has preempted, while an engine finishes what is under way: they run on, and the rest waits.

A scheduler that admits nothing new runs on only what has blocks. What it has preempted has none, and would wait with
new requests: an answer that has begun by the weights before would go on by the next ones. Needs no import of vLLM.

Used by the engine core's thread only.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("vllm.kv_messenger")
_PREEMPTED = "PREEMPTED"


def admit_preempted(scheduler: Any) -> Callable[[], None]:
    """Has what is preempted, now or later, run on before anything new is admitted. Returns what ends that."""
    if not hasattr(scheduler, "kv_holding_waiting"):
        logger.warning(
            "what is preempted meanwhile goes on by the new weights: the scheduler %s has no queue of requests that"
            " hold KV, expected vLLM's own",
            type(scheduler).__name__,
        )
        return lambda: None
    own = vars(scheduler)
    before = own.get("schedule")
    schedule = scheduler.schedule

    @functools.wraps(schedule)
    def schedule_and_admit(*args: Any, **kwargs: Any) -> Any:
        scheduled = schedule(*args, **kwargs)
        _move_preempted(scheduler)
        return scheduled

    def end() -> None:
        if before is None:
            own.pop("schedule", None)
        else:
            own["schedule"] = before

    _move_preempted(scheduler)
    scheduler.schedule = schedule_and_admit
    return end


def _move_preempted(scheduler: Any) -> None:
    """To the queue of what holds blocks, which is not empty before it has ended; a step may put it back."""
    preempted = [request for request in scheduler.waiting if request.status.name == _PREEMPTED]
    if preempted:
        scheduler.waiting.remove_requests(preempted)
        for request in reversed(preempted):
            scheduler.kv_holding_waiting.prepend_request(request)
