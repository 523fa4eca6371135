"""When two computations of one token's KV differ so much that the engines cannot compute the same. Pure.

Both sides of a transfer compute the KV of the same tokens: of the last prompt token with vLLM, of a prompt's beginning
with SGLang. Equal engines differ by rounding, which grows with depth and depends on the number format; the limits here
lie well above it, so that only gross differences are found. A finding says in which layer the difference begins and
what that hints at; it cannot say which side is wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Part = Literal["K", "V", "KV"]

_LAYER_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")
_SMALLEST = 1e-30


@dataclass(frozen=True, slots=True)
class RowDifference:
    """How far the received row of one layer is from the row that this engine computes."""

    layer: str
    part: Part
    """"KV" where keys and values cannot be told apart: latent KV, and pages of unknown layout."""
    relative: float
    """The largest difference of a number, as a part of the largest number of this engine's row."""
    cosine: float
    length_ratio: float = 1.0
    """The length of the received row as a vector, divided by that of this engine's."""

    @property
    def depth(self) -> int:
        """The number of the layer in the model; 0 if its name has none."""
        found = _LAYER_NUMBER.search(self.layer)
        return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest differences that rounding explains, for one number format."""

    first_layer: float
    """Of ``relative`` in layer 0, where one matrix product is all that was computed."""
    growth: float
    """What each further layer adds."""
    deepest: float
    cosine: float
    """The smallest cosine, in any layer."""
    length_factor: float = math.inf
    """The largest factor between the two lengths: a format with scales may keep directions and lose lengths."""

    def relative_at(self, depth: int) -> float:
        """The limit of ``relative`` in a layer."""
        return min(self.deepest, self.first_layer + depth * self.growth)


_COSINE = 0.9
"""The smallest cosine measured between right engines was 0.978, in a model with unusually large weights."""

_EIGHT_BITS = Limits(first_layer=math.inf, growth=0.0, deepest=math.inf, cosine=0.8, length_factor=1.5)
"""Eight bits differ by up to 0.6 between right engines, in single numbers; directions and lengths do not."""

LIMITS = {
    # Measured on right pairs: 5.5e-6 with other chunks; on GPUs a matrix product may round to 11 bits (5e-4).
    "float32": Limits(first_layer=0.005, growth=0.0025, deepest=0.1, cosine=_COSINE),
    # Measured with sums in eight parts against one: 0.004 after 4 layers, 0.032 after 24.
    "float16": Limits(first_layer=0.02, growth=0.01, deepest=0.5, cosine=_COSINE),
    # Measured likewise: 0 in layer 0, 0.012, 0.022 and 0.029 in the next three, at most 0.25 after 24.
    "bfloat16": Limits(first_layer=0.05, growth=0.05, deepest=0.5, cosine=_COSINE),
    "fp8": _EIGHT_BITS,
    "fp8_e4m3": _EIGHT_BITS,
    "fp8_e5m2": _EIGHT_BITS,
    "float8_e4m3fn": _EIGHT_BITS,
    "float8_e5m2": _EIGHT_BITS,
}
"""Limits by the format of the numbers in the pages, in the words of vLLM and of torch."""


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What an engine calls the settings that a hint names."""

    overrides: str = "--hf-overrides"
    length: str = "--max-model-len"


VLLM_NAMES = SettingNames()


def limits_of(number_format: str) -> Limits | None:
    """The limits for a number format; None if it is not known."""
    return LIMITS.get(number_format)


@dataclass(frozen=True, slots=True)
class Finding:
    """The first layer in which the two sides differ by more than rounding explains."""

    layer: str
    part: Part
    sentence: str
    """What was found, what was expected, and what it hints at."""


def compared(layer: str, part: Part, sums: Sequence[float]) -> RowDifference:
    """The difference from (largest difference, largest own number, product, received and own sum of squares)."""
    largest_difference, largest_own, product, received_squares, own_squares = sums
    lengths = math.sqrt(max(received_squares, 0.0)), math.sqrt(max(own_squares, 0.0))
    if lengths[0] <= _SMALLEST and lengths[1] <= _SMALLEST:
        return RowDifference(layer, part, 0.0, 1.0)
    relative = largest_difference / max(largest_own, _SMALLEST)
    cosine = product / max(lengths[0] * lengths[1], _SMALLEST)
    return RowDifference(layer, part, relative, cosine, lengths[0] / max(lengths[1], _SMALLEST))


def worst_of(differences: Sequence[RowDifference]) -> float:
    """The largest ``relative``; infinite if a received number is NaN, 0 of an empty sequence."""
    return max((math.inf if math.isnan(each.relative) else each.relative for each in differences), default=0.0)


def first_finding(
    differences: Sequence[RowDifference], limits: Limits, names: SettingNames = VLLM_NAMES
) -> Finding | None:
    """The finding in the lowest layer; None if all differences are within the limits."""
    beyond = [each for each in differences if _exceeded(each, limits)]
    if not beyond:
        return None
    depth = min(each.depth for each in beyond)
    first = next(each for each in beyond if each.depth == depth)
    parts = {each.part for each in beyond if each.depth == depth}
    lowest = min(each.depth for each in differences)
    hint = _hint(parts, first, names, at_start=depth == lowest == 0)
    return Finding(first.layer, first.part, f"{_exceeded(first, limits)}; {hint}")


def _exceeded(seen: RowDifference, limits: Limits) -> str:
    """Which limit is exceeded, in words; "" if none is. NaN exceeds all limits."""
    allowed = limits.relative_at(seen.depth)
    where = f"{seen.part} of layer {seen.layer}"
    if not seen.relative <= allowed:
        return f"{where} differs by {seen.relative:.3g} of its largest number, expected at most {allowed:.3g}"
    if not seen.cosine >= limits.cosine:
        return f"{where} points elsewhere (cosine {seen.cosine:.3g}), expected at least {limits.cosine:g}"
    if not 1 / limits.length_factor <= seen.length_ratio <= limits.length_factor:
        factor = limits.length_factor
        return f"{where} is {seen.length_ratio:.3g} times as long, expected {1 / factor:.3g} to {factor:.3g} times"
    return ""


def _hint(parts: set[Part], first: RowDifference, names: SettingNames, *, at_start: bool) -> str:
    if first.cosine > 0.99 and not 0.8 < first.length_ratio < 1.25:
        return "lengths alone differ, which hints at scales: compare the scales of K and V, and of embeddings"
    if not at_start:
        return (
            "the layers before it agree, which hints at attention scales, experts for each token, quantised or other"
            f" weights: compare {names.overrides}, quantisation and weights of both sides"
        )
    if parts == {"K"}:
        return (
            f"K alone in the first layer hints at positions: compare rope parameters, {names.overrides} and"
            f" {names.length} of both sides"
        )
    return (
        "a difference in the first layer hints at weights, embeddings, an adapter or the scales of K and V: compare the"
        " files of both sides"
    )
