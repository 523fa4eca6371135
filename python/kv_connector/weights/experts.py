"""Experts that a trainer has fused into one tensor, by the names of a checkpoint that has each apart. Pure.

Transformers 5 holds a layer's experts as ``experts.gate_up_proj`` of shape [experts, 2 * inner, hidden] and
``experts.down_proj`` of shape [experts, hidden, inner]. A checkpoint's ``experts.0.gate_proj.weight``,
``experts.0.up_proj.weight``, ``experts.1.gate_proj.weight`` and so on lie in the former one behind the other, so no
byte has to move. Which of the two forms an engine loads, its own checkpoint says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from kv_connector.weights.manifest import ELEMENT_BYTES, Manifest, Place

FUSED_DIMENSIONS = 3
_FUSED: Mapping[str, tuple[str, ...]] = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""The last part of a fused tensor's name, and those of each expert's parts in it."""


def named_as_in(served: Manifest, sent: Manifest) -> Manifest:
    """The tensors that were ``sent``, by the names that the ``served`` checkpoint has; length and digest are kept."""
    known = {place.name for place in served.places}
    return dataclasses.replace(sent, places=tuple(part for place in sent.places for part in _parts(place, known)))


def _parts(place: Place, known: set[str]) -> Iterator[Place]:
    experts, _, last = place.name.rpartition(".")
    parts = _FUSED.get(last)
    fused = parts and place.name not in known and f"{experts}.0.{parts[0]}.weight" in known
    if not parts or not fused or len(place.shape) != FUSED_DIMENSIONS:
        yield place
        return
    count, rows, columns = place.shape
    shape = (rows // len(parts), columns)
    for number in range(count):
        yield from _expert(place, f"{experts}.{number}", parts, shape, number)


def _expert(place: Place, name: str, parts: Sequence[str], shape: tuple[int, int], number: int) -> Iterator[Place]:
    length_bytes = math.prod(shape) * ELEMENT_BYTES[place.dtype]
    for index, part in enumerate(parts, start=number * len(parts)):
        yield Place(f"{name}.{part}.weight", place.dtype, shape, place.offset_bytes + index * length_bytes)
