"""What the KV of one of SGLang's requests is computed from. Pure; reads a request and changes nothing."""

from __future__ import annotations

from typing import Any

from kv_connector.prompt_digest import prompt_digest

NO_DIGEST = ""
"""Of prompts that the two sides may well describe otherwise: with images or sounds, or given as vectors."""


def digest_of(request: Any) -> str:
    """The digest of what a prefiller computes for this request, the same on both sides; or NO_DIGEST.

    A decoder that was paused wants what it has generated computed as well. SGLang names adapters by numbers that each
    server may draw for itself, so only whether there is one is compared.
    """
    if request.multimodal_inputs is not None or request.input_embeds or request.positional_embed_overrides is not None:
        return NO_DIGEST
    return prompt_digest(_tokens(request), lora="an adapter" if request.lora_id else "")


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
        queue.kv_manager.next_prompt_digest = digest_of(request)
        queue.kv_manager.next_prompt_tokens = length_of(request)


def name_new_receiver(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """After ``DecodePreallocQueue._create_receiver_and_enqueue``: what is declined has a name as well."""
    name_receiver(queue, waiting)


def name_receiver(_queue: Any, waiting: Any, *_args: Any, **_kwargs: Any) -> None:
    """Before ``DecodePreallocQueue._send_kv_metadata``: a decoder that was paused may want more by now."""
    from kv_connector.sglang.receiver import Receiver

    if isinstance(waiting.kv_receiver, Receiver):
        waiting.kv_receiver.prompt_digest = digest_of(waiting.req)
        waiting.kv_receiver.prompt_tokens = length_of(waiting.req)
