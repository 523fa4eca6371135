"""Which tensors an update has, and where each one lies: the same on both sides, which compare its digest. Pure."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kv_connector.exceptions import WeightsError

ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "int8", "uint8", "bool"), 1),
}
"""The types of elements, by torch's names."""
ALIGNMENT_BYTES = 64
_FORM = "kv-messenger weights 1"
"""The rules of places; part of the digest."""


class ManifestError(WeightsError):
    """Tensors that no manifest can have; one sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor, contiguous and in row-major order, and where it lies."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def length_bytes(self) -> int:
        """The length of its elements."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Manifest:
    """All tensors in their order, one behind the other."""

    places: tuple[Place, ...]
    length_bytes: int
    digest: str
    """SHA-256 in hex over names, types, shapes and places."""

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, str, Sequence[int]]]) -> Manifest:
        """The manifest of tensors given as (name, type, shape); raises ManifestError."""
        places: list[Place] = []
        names: set[str] = set()
        digest = hashlib.sha256(_FORM.encode())
        at = 0
        for name, dtype, shape in tensors:
            _check(name, dtype, shape, names)
            names.add(name)
            place = Place(name, dtype, tuple(shape), at)
            places.append(place)
            digest.update(f"\n{name} {dtype} {list(shape)} {at}".encode())
            at += aligned(place.length_bytes)
        if not at:
            raise ManifestError("the manifest has no bytes, expected the tensors of a model: name them")
        return cls(tuple(places), at, digest.hexdigest())

    def described(self) -> dict[str, list[object]]:
        """Names, types and shapes, as lists of JSON."""
        return {
            "names": [place.name for place in self.places],
            "dtype_names": [place.dtype for place in self.places],
            "shapes": [list(place.shape) for place in self.places],
        }

    def difference_from(self, served: Manifest, not_loaded: frozenset[str] = frozenset()) -> str:
        """What of this manifest the engine's own checkpoint has not, or has otherwise, in one sentence; "" = nothing.

        Types may differ: an engine converts what it loads. Tensors that are ``not_loaded`` may be there or not.
        """
        sent = {place.name: place.shape for place in self.places}
        known = {place.name: place.shape for place in served.places}
        for name in sorted((sent.keys() | known.keys()) - not_loaded):
            if sent.get(name) != known.get(name):
                return (
                    f"tensor {name} is {_shown(sent.get(name))}, and {_shown(known.get(name))} in the checkpoint that"
                    " this server was started from: send weights of the same model"
                )
        return ""


def aligned(length_bytes: int) -> int:
    """The bytes from a tensor of this length to the next one."""
    return -(-length_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _check(name: str, dtype: str, shape: Sequence[int], names: set[str]) -> None:
    if name in names:
        raise ManifestError(f"tensor {name} is named twice: name each one once")
    if dtype not in ELEMENT_BYTES:
        raise ManifestError(f"tensor {name} has elements of type {dtype}, expected one of {', '.join(ELEMENT_BYTES)}")
    if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
        raise ManifestError(f"tensor {name} has the shape {list(shape)}, expected numbers from 0")


def _shown(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
