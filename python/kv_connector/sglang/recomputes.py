"""What a decoder asks of a prefiller after ``pause_generation`` with ``retract``: that a prompt is computed again.

SGLang sends the tokens so far under the request's own id. There its first leg may be open still, as long as the
prefiller's scheduler is paused or busy, and that server refuses an id that is in use: the request would end with HTTP
500. It also names no adapter, and sends no images, sounds or vectors. Used by the scheduler's thread only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from kv_connector.sglang.receiver import Receiver

ASKS = "sglang.srt.disaggregation.decode.DecodePreallocQueue._submit_prefill_recompute"
AGAIN = "#again-"
"""Between a request's id, which comes first so that an abort by it ends both, and the number of the recompute."""
_numbers = itertools.count(1)


def ask_again(original: Callable[..., Any], queue: Any, waiting: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps ``DecodePreallocQueue._submit_prefill_recompute``; all ranks call it, and SGLang lets one of them send."""
    receiver, request = waiting.kv_receiver, waiting.req
    if not isinstance(receiver, Receiver):
        return original(queue, waiting, *args, **kwargs)
    if fault := recompute_fault(request):
        receiver.refuse(fault)
        return None
    return queue.kv_manager.submit_prefill_recompute(receiver, payload_of(queue.scheduler, request))


def recompute_fault(request: Any) -> str:
    """Why SGLang cannot have this prompt computed again, in one sentence; "" if it can."""
    more = {
        "images or sounds": request.multimodal_inputs is not None,
        "vectors in place of tokens": bool(request.input_embeds),
        "vectors in place of some tokens": request.positional_embed_overrides is not None,
    }
    found = next((name for name, is_there in more.items() if is_there), "")
    return found and (
        f"the prompt has {found}, expected token ids alone, since SGLang sends a prefiller nothing else after"
        " pause_generation with mode 'retract': pause with 'in_place' or 'abort', or send the request again"
    )


def payload_of(scheduler: Any, request: Any) -> dict[str, Any]:
    """SGLang's own question, under an id that is not in use, and with the adapter."""
    payload = {**request.build_rebootstrap_payload(), "rid": f"{request.rid}{AGAIN}{next(_numbers)}"}
    if not request.lora_id:
        return payload
    adapter = scheduler.tp_worker.model_runner.lora_manager.lora_refs.get(request.lora_id)
    if adapter is not None:  # else the two sides name different prompts, and the request ends with that
        payload["lora_path"] = adapter.lora_name
        payload["extra_key"] = (payload["extra_key"] or "").removesuffix(request.lora_id) or None  # SGLang has added it
    return payload
