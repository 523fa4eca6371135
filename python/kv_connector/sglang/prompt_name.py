"""The digest of what the KV of an SGLang request is computed from. Reads requests only."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

from kv_connector.naming.prompt_digest import Embeddings, Feature, prompt_digest


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
