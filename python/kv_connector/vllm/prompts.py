"""What the KV of one of vLLM's requests is computed from. Reads requests; one function changes one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from kv_connector.adapter_digest import adapter_identity
from kv_connector.last_token import LastTokenRule
from kv_connector.prompt_digest import Embeddings, Feature, prompt_digest

_MADE_UP_IDENTITY = re.compile(r"renderer\d+-mm-\d+-")
"""With both of its caches off, vLLM hashes no multimodal content and numbers it instead: each side by itself."""


def digest_of(request: Any) -> str:
    """The digest of the request's prompt."""
    lora = getattr(request, "lora_request", None)
    return prompt_digest(
        request.prompt_token_ids,
        embeddings=_embeddings(request),
        lora=adapter_identity(lora.lora_name, lora.lora_path) if lora is not None else "",
        features=_features(request),
        cache_salt=getattr(request, "cache_salt", None) or "",
    )


def _features(request: Any) -> Iterator[Feature]:
    for feature in getattr(request, "mm_features", None) or ():
        identity = str(feature.mm_hash or feature.identifier)
        if _MADE_UP_IDENTITY.match(identity):
            identity = ""
        position = feature.mm_position
        yield Feature(f"{feature.modality}:{identity}", int(position.offset), int(position.length))


def _embeddings(request: Any) -> Embeddings | None:
    vectors = getattr(request, "prompt_embeds", None)
    if vectors is None:
        return None
    import torch

    numbers = vectors.detach().cpu().contiguous()
    return Embeddings(
        dtype=str(numbers.dtype).removeprefix("torch."),
        shape=tuple(numbers.shape),
        data=numbers.view(torch.uint8).numpy().tobytes(),
        token_positions=getattr(request, "prompt_is_token_ids", None),
    )


def leave_out_last_token(request: Any, rule: LastTokenRule) -> int:
    """Makes the prefiller end where the rule says; how many tokens the prompt has then.

    The token that the engine answers with then means nothing: it is asked for one, and no more. A prompt of one token
    is left alone, and one with ``prompt_logprobs``, of which a decoder loads nothing.
    """
    tokens = int(request.num_prompt_tokens)
    kept = rule.sent_tokens(tokens)
    if kept == tokens or request.get_skip_reading_prefix_cache():
        return tokens
    if request.prompt_token_ids is not None:
        request.prompt_token_ids = request.prompt_token_ids[:kept]  # the list may be another choice's too
    else:
        request.prompt_embeds = request.prompt_embeds[:kept]
    del request._all_token_ids[kept:]
    request.num_prompt_tokens = kept
    request.max_tokens = 1
    return kept
