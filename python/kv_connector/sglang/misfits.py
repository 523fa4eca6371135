"""Refuses requests that SGLang takes in and that a pair cannot hand over, some of which would end its scheduler.

SGLang checks what it writes into a row of metadata only after the forward pass, and raises there. A prompt without
tokens gets no pages, and neither side of SGLang expects that. Several samples of one request come under one room.
"""

from __future__ import annotations

from typing import Any

from kv_connector.sglang.client_fields import logprobs_fault, prompt_fault, samples_fault
from kv_connector.sglang.prompt_name import length_of
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.sender import Sender


def refuse_sending(_result: Any, queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``PrefillBootstrapQueue.create_sender``."""
    sender = request.disagg_kv_sender
    if isinstance(sender, Sender) and (fault := _fault(queue, request)):
        sender.refuse(fault)


def refuse_receiving(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``DecodePreallocQueue._create_receiver_and_enqueue``: its prefiller refuses the request, too."""
    if isinstance(waiting.kv_receiver, Receiver) and (fault := _fault(queue, waiting.req)):
        waiting.kv_receiver.refuse(fault)


def _fault(queue: Any, request: Any) -> str:
    asked = request.logprob.top_logprobs_num if request.return_logprob else 0
    most = queue.metadata_buffers.output_top_logprobs_val.shape[1]
    samples = samples_fault(request.sampling_params.n)
    return prompt_fault(length_of(request)) or logprobs_fault(asked, most) or samples
