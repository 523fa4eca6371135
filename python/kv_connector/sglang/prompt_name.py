"""The digest of what the KV of an SGLang request is computed from. Reads requests and their scheduler only."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from kv_connector.prompt_digest import Embeddings, Feature, prompt_digest
from kv_connector.sglang import weight_changes
from kv_connector.sglang.client_fields import NO_ROOM, room_fault
from kv_connector.sglang.loaded_adapters import ADAPTERS
from kv_connector.sglang.pair_check import bind

NO_DIGEST = ""
"""Stands for the digest of a request that has none yet."""


def digest_of(request: Any, *, adapter: str = "", weights: str = "", contents_alike: bool = True) -> str:
    """The digest of what a prefiller computes for this request; equal on both sides.

    A decoder that was paused has its generated tokens computed again too. If the two sides may describe an equal prompt
    differently, the digest covers the adapter and the weights only: for images and audio unless ``contents_alike``, for
    content without a hash of SGLang's, and for vectors of other kinds.
    """
    features = _features(request.multimodal_inputs) if contents_alike or request.multimodal_inputs is None else None
    embeddings = _embeddings(request.input_embeds) if request.input_embeds else None
    unread = request.input_embeds and embeddings is None
    if features is None or unread or request.positional_embed_overrides is not None:
        return prompt_digest(None, lora=adapter, weights=weights)
    return prompt_digest(_tokens(request), embeddings=embeddings, lora=adapter, features=features, weights=weights)


def _features(inputs: Any) -> list[Feature] | None:
    """Images and audio by SGLang's hashes, by which its own cache distinguishes them; None without hashes."""
    features = []
    for item in inputs.mm_items if inputs is not None else ():
        if item.hash is None:
            return None
        content = f"{item.modality.name} {item.hash:x}"
        places = item.offsets or [(0, -1)]
        features += [Feature(content, int(first), int(last) - int(first) + 1) for first, last in places]
    return features


def _embeddings(vectors: Sequence[Sequence[float]]) -> Embeddings | None:
    """A prompt given as vectors, by the numbers that the client sent; None if it is not a list of vectors."""
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
    """The number of tokens that a prefiller computes for this request."""
    return len(_tokens(request))


def _tokens(request: Any) -> Any:
    computed_again = getattr(request, "pd_rebootstrap_in_progress", False)
    return request.origin_input_ids + request.output_ids if computed_again else request.origin_input_ids


def name_sender(queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.create_sender``, which passes only the room of the request to the sender."""
    from kv_connector.sglang.endpoint import TransferEndpoint

    if isinstance(queue.kv_manager, TransferEndpoint):
        queue.kv_manager.next_prompt_digest = _digest_in(queue.scheduler, request)
        queue.kv_manager.next_prompt_tokens = length_of(request)


def name_new_receiver(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``DecodePreallocQueue._create_receiver_and_enqueue``: a decline needs a digest too.

    A room that was refused is replaced: SGLang goes on to compute with it until it sees that the receiver has failed.
    """
    from kv_connector.sglang.receiver import Receiver

    name_receiver(queue, waiting)
    if isinstance(waiting.kv_receiver, Receiver) and room_fault(waiting.req.bootstrap_room):
        waiting.req.bootstrap_room = NO_ROOM


def name_receiver(queue: Any, waiting: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``DecodePreallocQueue._send_kv_metadata``: a paused decoder may need more tokens by now."""
    from kv_connector.sglang.receiver import Receiver

    if isinstance(waiting.kv_receiver, Receiver):
        waiting.kv_receiver.prompt_digest = _digest_in(queue.scheduler, waiting.req)
        waiting.kv_receiver.prompt_tokens = length_of(waiting.req)
        waiting.kv_receiver.arrival.adapter = _adapter(queue.scheduler, waiting.req.lora_id)
        bind(waiting.req, waiting.kv_receiver.arrival)


def _digest_in(scheduler: Any, request: Any) -> str:
    return digest_of(
        request,
        adapter=_adapter(scheduler, request.lora_id),
        weights=weight_changes.name(),
        contents_alike=request.multimodal_inputs is None or _contents_are_alike(),
    )


def _contents_are_alike() -> bool:
    """Whether both sides have equal hashes of equal images.

    SGLang hashes the output of an image's processor. Processors on two kinds of GPUs may round differently; those on
    CPUs give equal results. With SGLANG_MM_SKIP_COMPUTE_HASH the hashes are random numbers.
    """
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_device

    return get_device().device == "cpu" and not envs.SGLANG_MM_SKIP_COMPUTE_HASH.get()


def _adapter(scheduler: Any, lora_id: str | None) -> str:
    """The adapter's identity by its contents: each server gives adapters ids of its own."""
    return ADAPTERS.identity(scheduler.tp_worker.model_runner.lora_manager, lora_id) if lora_id else ""
