"""A vLLM plugin that logs, for any connector, when the last layer was computed and when decoding may begin.

It is found through PYTHONPATH. Times are of the machine's monotonic clock. A prefiller's worker stamps the end of each
forward pass, with its requests; the last stamp of a request counts. A decoder's scheduler stamps when the arrival of KV
is reported to it (``told``), and when it schedules the request in a step (``ready``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any


def stamp(what: str, requests: Iterable[str]) -> None:
    print(f"stopwatch {what} at_ns={time.monotonic_ns()} requests={','.join(requests)}", file=sys.stderr, flush=True)


def register() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    library: Any = GPUModelRunner
    forward = library._model_forward

    def forward_and_stamp(runner: Any, *given: Any, **named: Any) -> Any:
        result = forward(runner, *given, **named)
        transfer = runner.vllm_config.kv_transfer_config
        if transfer is not None and transfer.kv_role == "kv_producer":
            stamp("forward_end", runner.input_batch.req_ids)
        return result

    library._model_forward = forward_and_stamp
    scheduler: Any = Scheduler
    hear, take = scheduler._update_from_kv_xfer_finished, scheduler._update_waiting_for_remote_kv

    def stamp_and_hear(self: Any, output: Any) -> None:
        if output.finished_recving:
            stamp("told", output.finished_recving)
        hear(self, output)

    def take_and_stamp(self: Any, request: Any) -> None:
        take(self, request)
        stamp("ready", [request.request_id])

    scheduler._update_from_kv_xfer_finished = stamp_and_hear
    scheduler._update_waiting_for_remote_kv = take_and_stamp
