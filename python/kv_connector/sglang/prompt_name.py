"""What the KV of one of SGLang's requests is computed from. Reads a request and its scheduler; changes neither."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from kv_connector.prompt_digest import Embeddings, prompt_digest
from kv_connector.sglang import weight_changes
from kv_connector.sglang.loaded_adapters import ADAPTERS

NO_DIGEST = ""
"""Of prompts that the two sides may well describe otherwise: with images or sounds, or with vectors of other kinds."""


def digest_of(request: Any, *, adapter: str = "", weights: str = "") -> str:
    """The digest of what a prefiller computes for this request, the same on both sides; or NO_DIGEST.

    A decoder that was paused wants what it has generated computed as well.
    """
    if request.multimodal_inputs is not None or request.positional_embed_overrides is not None:
        return NO_DIGEST
    embeddings = None
    if request.input_embeds:
        embeddings = _embeddings(request.input_embeds)
        if embeddings is None:
            return NO_DIGEST
    return prompt_digest(_tokens(request), embeddings=embeddings, lora=adapter, weights=weights)


def _embeddings(vectors: Sequence[Sequence[float]]) -> Embeddings | None:
    """A prompt given as vectors, by the numbers that the client sent; None of what is no list of vectors."""
    numbers = array("d")
    try:
        for vector in vectors:
            numbers.extend(vector)
        shape = (len(vectors), len(vectors[0]))
    except TypeError:
        return None
    if sys.byteorder == "big":
        numbers.byteswap()
    return Embeddings("float64", shape, memoryview(numbers).cast("B"))


def length_of(request: Any) -> int:
    """How many tokens a prefiller computes for this request."""
    return len(_tokens(request))


def _tokens(request: Any) -> Any:
    computed_again = getattr(request, "pd_rebootstrap_in_progress", False)
    return request.origin_input_ids + request.output_ids if computed_again else request.origin_input_ids


def name_sender(queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``PrefillBootstrapQueue.create_sender``, which gives the sender nothing of its request but the room."""
    from kv_connector.sglang.endpoint import TransferEndpoint

    if isinstance(queue.kv_manager, TransferEndpoint):
        queue.kv_manager.next_prompt_digest = _digest_in(queue.scheduler, request)
        queue.kv_manager.next_prompt_tokens = length_of(request)


def name_new_receiver(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``DecodePreallocQueue._create_receiver_and_enqueue``: what is declined has a name as well."""
    name_receiver(queue, waiting)


def name_receiver(queue: Any, waiting: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``DecodePreallocQueue._send_kv_metadata``: a decoder that was paused may want more by now."""
    from kv_connector.sglang.receiver import Receiver

    if isinstance(waiting.kv_receiver, Receiver):
        waiting.kv_receiver.prompt_digest = _digest_in(queue.scheduler, waiting.req)
        waiting.kv_receiver.prompt_tokens = length_of(waiting.req)


def _digest_in(scheduler: Any, request: Any) -> str:
    return digest_of(request, adapter=_adapter(scheduler, request.lora_id), weights=weight_changes.name())


def _adapter(scheduler: Any, lora_id: str | None) -> str:
    """SGLang numbers adapters, and each server by itself: what it loaded of them is compared."""
    return ADAPTERS.identity(scheduler.tp_worker.model_runner.lora_manager, lora_id) if lora_id else ""
