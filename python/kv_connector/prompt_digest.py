"""Names what a prompt is computed from, alike on both sides of a transfer. Pure; for every engine.

Two prompts of one length under one transfer id are told apart by it: a prefiller sends KV only to the decoder whose
prompt has the same digest. All that changes the KV of a prompt belongs in here; what changes only the answer, such as
sampling, does not.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DIGEST_LENGTH_BYTES = 16
"""Enough against chance and against a client that looks for two prompts of one digest."""

_VERSION = b"kv-messenger prompt 1\n"
"""The encoding below: a change of it needs another number here, so that two versions refuse each other's prompts."""

_FIELD = struct.Struct("<cQ")
"""Each field: one letter that says what it is, then its length in bytes, then the bytes."""


@dataclass(frozen=True, slots=True)
class Feature:
    """An image, a sound or the like in the prompt: what it is, and which positions it takes."""

    content: str
    """The engine's hash of its content."""
    offset_tokens: int
    length_tokens: int


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A prompt, or parts of one, given as vectors."""

    dtype: str
    shape: Sequence[int]
    data: bytes | memoryview
    token_positions: Sequence[bool] | None = None
    """Where a prompt mixes both, which positions are token ids; None when all are vectors."""


def prompt_digest(
    token_ids: Sequence[int] | None,
    *,
    embeddings: Embeddings | None = None,
    lora: str = "",
    features: Iterable[Feature] = (),
    cache_salt: str = "",
    weights: str = "",
) -> str:
    """32 hexadecimal digits; never empty, so that it differs from "no digest".

    ``weights`` says which weights the engine computes with now, where it changes them while it runs.
    """
    digest = hashlib.sha256(_VERSION)

    def add(kind: bytes, content: bytes | memoryview) -> None:
        digest.update(_FIELD.pack(kind, len(content)))
        digest.update(content)

    if token_ids is not None:
        add(b"t", _little_endian(token_ids))
    if embeddings is not None:
        add(b"d", embeddings.dtype.encode())
        add(b"s", _little_endian(embeddings.shape))
        add(b"e", memoryview(embeddings.data).cast("B"))
        if embeddings.token_positions is not None:
            add(b"p", bytes(bool(position) for position in embeddings.token_positions))
    if lora:
        add(b"l", _text(lora))
    for feature in features:
        add(b"f", _text(feature.content))
        add(b"o", _little_endian((feature.offset_tokens, feature.length_tokens)))
    if cache_salt:
        add(b"c", _text(cache_salt))
    if weights:
        add(b"w", _text(weights))
    return digest.digest()[:DIGEST_LENGTH_BYTES].hex()


def _text(text: str) -> bytes:
    """Clients' JSON may hold halves of surrogate pairs, which UTF-8 does not know."""
    return text.encode(errors="surrogatepass")


def _little_endian(numbers: Sequence[int]) -> bytes:
    packed = array("q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
