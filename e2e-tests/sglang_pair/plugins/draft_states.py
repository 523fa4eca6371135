"""A plug-in of SGLang that writes down what a draft has of each prompt, on both sides of a pair.

A line a request and rank, in a file for each process in the folder that `KV_MESSENGER_RECORDING` names: the draft's K
and V of all tokens of the prompt as a digest for each head of each buffer, and its rows in the metadata, which are the
hidden states and the probabilities and ids of guesses. On the prefiller when SGLang has handed the last chunk over; on
the decoder when it takes the request for computing.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

SUFFIX = ".drafts"
PREFILL = "sglang.srt.disaggregation.prefill.SchedulerDisaggregationPrefillMixin.send_kv_chunk"
DECODE = "sglang.srt.disaggregation.decode.DecodeTransferQueue._commit_transfer_to_req"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(PREFILL, computed, HookType.AFTER)
    HookRegistry.register(DECODE, received, HookType.BEFORE)


def computed(_result: None, scheduler: Any, request: Any, last_chunk: bool = False, **_named: Any) -> None:
    if last_chunk:
        write(scheduler, "prefill", request, scheduler.disagg_metadata_buffers, request.metadata_buffer_index)


def received(queue: Any, waiting: Any) -> None:
    write(queue.scheduler, "decode", waiting.req, queue.metadata_buffers, waiting.metadata_buffer_index)


def write(scheduler: Any, side: str, request: Any, buffers: Any, row: int) -> None:
    if not request.bootstrap_room:  # a health check of SGLang's: nothing is transferred
        return
    from sglang.srt.runtime_context import get_parallel

    pool = scheduler.draft_worker.draft_worker.draft_runner.token_to_kv_pool
    slots = scheduler.req_to_token_pool.req_to_token[request.kv.req_pool_idx, : len(request.origin_input_ids)].long()
    of_guesses = (buffers.output_hidden_states, buffers.output_topk_p, buffers.output_topk_index)
    found = {
        "room": int(request.bootstrap_room),
        "side": side,
        "rank": get_parallel().tp_rank,
        "heads": [
            [digest(buffer[slots, head]) for head in range(buffer.shape[1])]
            for buffer in (*pool.k_buffer, *pool.v_buffer)
        ],
        "rows": [digest(each[row]) for each in of_guesses],
        "hidden": bool(buffers.output_hidden_states[row].any()),
    }
    path = Path(os.environ["KV_MESSENGER_RECORDING"]) / f"{os.getpid()}{SUFFIX}"
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")


def digest(values: Any) -> str:
    import torch

    return hashlib.sha256(values.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
