"""The digest of what the KV of a vLLM request is computed from. Only ``cut`` changes a request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from kv_connector.naming.adapter_digest import adapter_identity
from kv_connector.naming.last_token import LastTokenRule
from kv_connector.naming.prompt_digest import Embeddings, Feature, prompt_digest

_MADE_UP_IDENTITY = re.compile(r"renderer\d+-mm-\d+-")
"""With both of its caches off, vLLM does not hash multimodal content but numbers it, differently on each side.

Assumed of vLLM: with both off, each request brings the processed content to the scheduler.
"""


def _identity_in_files(adapter: Any) -> str:
    return adapter_identity(adapter.lora_name, adapter.lora_path)


def digest_of(request: Any, weights: str = "", adapter_of: Callable[[Any], str] = _identity_in_files) -> str:
    """The digest of the request's prompt, and of ``weights`` if they were changed in the running engine."""
    lora = getattr(request, "lora_request", None)
    return prompt_digest(
        request.prompt_token_ids,
        embeddings=_embeddings(request),
        lora=adapter_of(lora) if lora is not None else "",
        features=_features(request),
        cache_salt=getattr(request, "cache_salt", None) or "",
        weights=weights,
    )


def prompt_of(request: Any) -> Any:
    """Of a request only what ``digest_of`` reads, as it is now."""
    return SimpleNamespace(
        prompt_token_ids=request.prompt_token_ids,
        prompt_embeds=getattr(request, "prompt_embeds", None),
        prompt_is_token_ids=getattr(request, "prompt_is_token_ids", None),
        lora_request=getattr(request, "lora_request", None),
        mm_features=getattr(request, "mm_features", None),
        cache_salt=getattr(request, "cache_salt", None),
    )


def computed_with(request: Any, digest_of: Callable[[Any], str]) -> str:
    """The digest of the weights and the adapter alone with which the engine would compute this request now."""
    return digest_of(SimpleNamespace(prompt_token_ids=(), lora_request=getattr(request, "lora_request", None)))


def _features(request: Any) -> Iterator[Feature]:
    for feature in getattr(request, "mm_features", None) or ():
        identity = str(feature.mm_hash or feature.identifier)
        if _MADE_UP_IDENTITY.match(identity) and feature.data is not None:
            identity = _content_identity(feature.data.get_data())
        position = feature.mm_position
        yield Feature(f"{feature.modality}:{identity}", int(position.offset), int(position.length))


def _content_identity(arguments: Mapping[str, Any]) -> str:
    """A digest, 32 hexadecimal digits, of the processor's output for an image, audio, etc.; by argument name."""
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, list | tuple):
            digest.update(f"[{len(value)}]".encode())
            for each in value:
                add(each)
        elif hasattr(value, "detach"):
            dtype, shape, data = _bytes_of(value)
            digest.update(f"{dtype}{shape}".encode() + data)
        else:
            digest.update(f"{value!r};".encode())

    for name in sorted(arguments):
        digest.update(f"{name}=".encode())
        add(arguments[name])
    return digest.hexdigest()[:32]


def _embeddings(request: Any) -> Embeddings | None:
    vectors = getattr(request, "prompt_embeds", None)
    if vectors is None:
        return None
    dtype, shape, data = _bytes_of(vectors)
    return Embeddings(dtype, shape, data, token_positions=getattr(request, "prompt_is_token_ids", None))


def _bytes_of(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    """(dtype, shape, bytes) of a torch tensor."""
    import torch

    numbers = tensor.detach().cpu().contiguous()
    dtype = str(numbers.dtype).removeprefix("torch.")
    return dtype, tuple(numbers.shape), numbers.reshape(-1).view(torch.uint8).numpy().tobytes()


def leave_out_last_token(request: Any, rule: LastTokenRule) -> int:
    """Cuts the prompt on the prefiller as the rule says; returns the number of tokens that it has then.

    The token that the engine generates is meaningless, so ``max_tokens`` becomes 1. A prompt of one token stays
    unchanged, and so does one with ``prompt_logprobs``, for which a decoder loads nothing.
    """
    tokens = int(request.num_prompt_tokens)
    kept = rule.sent_tokens(tokens)
    if kept == tokens or request.get_skip_reading_prefix_cache():
        return tokens
    cut(request, kept)
    return kept


_OF_EACH_TOKEN = ("prompt_token_ids", "prompt_embeds", "prompt_is_token_ids")
"""What vLLM keeps of each token of a prompt: a message with vectors between its words has all three. Its workers end
where two of them have unlike lengths."""


def cut(request: Any, kept_tokens: int) -> None:
    """Only the first tokens of the prompt are left, to be computed and followed by one token."""
    for name in _OF_EACH_TOKEN:
        if (held := getattr(request, name, None)) is not None:
            setattr(request, name, held[:kept_tokens])  # a copy: another choice may share the list
    del request._all_token_ids[kept_tokens:]
    request.num_prompt_tokens = kept_tokens
    request.max_tokens = 1
