"""The digest of everything from which a prompt's KV is computed; equal on both sides. Pure; for all engines.

It distinguishes prompts of equal length with the same transfer id: a prefiller sends KV only to a decoder whose prompt
has the same digest. It must cover everything that changes the KV of a prompt, but nothing that changes only the answer,
such as sampling parameters.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NO_DIGEST = ""
"""Stands for the digest of a prompt that has none yet."""

DIGEST_LENGTH_BYTES = 16
"""Long enough to prevent collisions, both accidental ones and those that a client searches for."""

_VERSION = b"kv-messenger prompt 1\n"
"""The version of the encoding below; it must change with the encoding, so that two versions never agree on a digest."""

_FIELD = struct.Struct("<cQ")
"""The head of a field: one letter for its kind, and the length in bytes of the content that follows."""


@dataclass(frozen=True, slots=True)
class Feature:
    """An image, audio or similar in the prompt, and the positions that it takes."""

    content: str
    """The engine's hash of the content."""
    offset_tokens: int
    length_tokens: int


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A prompt, or parts of one, given as vectors."""

    dtype: str
    shape: Sequence[int]
    data: bytes | memoryview
    token_positions: Sequence[bool] | None = None
    """In a prompt with both, whether each position is a token id; None if all are vectors."""


def prompt_digest(
    token_ids: Sequence[int] | None,
    *,
    embeddings: Embeddings | None = None,
    lora: str = "",
    features: Iterable[Feature] = (),
    cache_salt: str = "",
    weights: str = "",
) -> str:
    """The digest as 32 hexadecimal digits; never empty, so that it differs from "no digest".

    ``weights`` names the engine's current weights if they were changed while it runs.
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
    """Encodes text; clients' JSON may contain lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="surrogatepass")


def _little_endian(numbers: Sequence[int]) -> bytes:
    packed = array("q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()
