"""Refuses requests that SGLang takes in and that a pair cannot hand over, some of which would end its scheduler.

SGLang checks what it writes into a row of metadata only after the forward pass, and raises there. A prompt without
tokens gets no pages, and neither side of SGLang expects that. A token beyond the vocabulary ends the pass. Several
samples of one request come under one room. An SGLang that is to give logprobs from a negative place of the prompt on
ends behind its forward pass.

They are turned away where SGLang turns its own misfits away, so that the client reads HTTP 400: 500 is for a server
that has failed. Senders and receivers refuse the same once more.
"""

from __future__ import annotations

from array import array
from http import HTTPStatus
from typing import Any

from kv_connector.sglang.client_fields import (
    address_fault,
    dp_rank_fault,
    logprob_start_fault,
    logprobs_fault,
    other_rank_fault,
    prompt_fault,
    room_fault,
    samples_fault,
    vocabulary_fault,
)
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.prefillers import dp_rank_of
from kv_connector.sglang.prompt_name import length_of
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.sender import Sender


def turn_away_sending(queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.add``. A prefiller needs no address, but its decoder refuses a wrong one."""
    if isinstance(queue.kv_manager, TransferEndpoint):
        is_named = request.bootstrap_host is not None
        place = _address_fault(request) if is_named else room_fault(request.bootstrap_room)
        _turn_away(request, place or _rank_fault(queue, request) or _fault(queue, request))


def turn_away_receiving(queue: Any, request: Any, is_retracted: bool = False, is_rebootstrap: bool = False) -> None:
    """Runs before ``DecodePreallocQueue.add``."""
    if isinstance(queue.kv_manager, TransferEndpoint) and not is_retracted and not is_rebootstrap:
        _turn_away(request, _address_fault(request) or _fault(queue, request))


def answer_mistakes(_result: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``DecodePreallocQueue._update_handshake_waiters``, which answers 500 to all that have failed.

    What only the prefiller's topology shows to be a client's mistake is answered as at the door.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    for waiting in queue.queue:
        receiver, reason = waiting.kv_receiver, waiting.req.finished_reason
        if isinstance(receiver, Receiver) and receiver.mistake and isinstance(reason, FINISH_ABORT):
            reason.message, reason.status_code = receiver.mistake, HTTPStatus.BAD_REQUEST
            reason.err_type = "BadRequestError"


def refuse_sending(_result: Any, queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``PrefillBootstrapQueue.create_sender``."""
    sender = request.disagg_kv_sender
    if isinstance(sender, Sender) and (fault := _fault(queue, request)):
        sender.refuse(fault)


def refuse_receiving(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``DecodePreallocQueue._create_receiver_and_enqueue``: its prefiller refuses the request, too."""
    if isinstance(waiting.kv_receiver, Receiver) and (fault := _fault(queue, waiting.req)):
        waiting.kv_receiver.refuse(fault)


def _turn_away(request: Any, fault: str) -> None:
    """Marks a request that has nothing yet, so that SGLang answers it at once; one that it refuses itself stays so."""
    from sglang.srt.disaggregation.utils import FAKE_BOOTSTRAP_HOST, is_aborted, is_unadmitted_reject
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    if not fault or request.bootstrap_host == FAKE_BOOTSTRAP_HOST or is_aborted(request):
        return
    request.to_finish = FINISH_ABORT(fault)
    is_new, request.to_finish = is_unadmitted_reject(request), None
    if is_new:
        request.set_finish_with_abort(fault)


def _address_fault(request: Any) -> str:
    host, rank = request.bootstrap_host, request.disagg_prefill_dp_rank
    address = f"{host if isinstance(host, str) else ''}:{request.bootstrap_port}"
    rank_fault = "" if rank is None else dp_rank_fault(rank)
    return room_fault(request.bootstrap_room) or address_fault(address) or rank_fault


def _rank_fault(queue: Any, request: Any) -> str:
    from sglang.srt.runtime_context import get_parallel

    return other_rank_fault(request.disagg_prefill_dp_rank, get_parallel().num_dp_ranks, dp_rank_of(queue.kv_manager))


def _fault(queue: Any, request: Any) -> str:
    asked = request.logprob.top_logprobs_num if request.return_logprob else 0
    start = logprob_start_fault(request.logprob_start_len) if request.return_logprob else ""
    most = queue.metadata_buffers.output_top_logprobs_val.shape[1]
    prompt = prompt_fault(length_of(request)) or _vocabulary_fault(queue, request)
    return prompt or logprobs_fault(asked, most) or start or samples_fault(request.sampling_params.n)


def _vocabulary_fault(queue: Any, request: Any) -> str:
    """Ids that stand for something else, or may be an adapter's own, are left to SGLang."""
    import torch

    model = getattr(getattr(queue, "scheduler", None), "model_config", None)
    if model is None or not request.origin_input_ids:
        return ""
    others = (request.multimodal_inputs, request.positional_embed_overrides, request.input_embeds, request.lora_id)
    if any(other is not None for other in others):
        return ""
    tokens = torch.frombuffer(array("q", request.origin_input_ids), dtype=torch.int64)
    return vocabulary_fault(int(tokens.min()), int(tokens.max()), int(model.hf_text_config.vocab_size))
