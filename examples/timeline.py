"""Reads the ``kv_messenger timeline {json}`` lines that the connector logs: what happened when to each transfer.

Both sides of one machine stamp with the same monotonic clock, so their times compare. The fields are described in
``docs/operations.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

LINE = re.compile(r"kv_messenger timeline (\{.*\})")


@dataclass(frozen=True)
class LayerTimes:
    layer: int
    readable_ns: int
    submitted_ns: int
    left_ns: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        return cls(fields["layer"], fields["readableNs"], fields["submittedNs"], fields["leftNs"])


@dataclass(frozen=True)
class ChunkTimes:
    first_token: int
    end_token: int
    forward_start_ns: int
    forward_end_ns: int
    layers: tuple[LayerTimes, ...]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        layers = tuple(LayerTimes.parse(layer) for layer in fields["layers"])
        return cls(fields["firstToken"], fields["endToken"], fields["forwardStartNs"], fields["forwardEndNs"], layers)

    def left_early(self) -> int:
        """How many layers had left before this chunk's forward pass ended."""
        return sum(1 for layer in self.layers if layer.left_ns < self.forward_end_ns)

    def wholly_left_ns(self) -> int:
        return max(layer.left_ns for layer in self.layers)


@dataclass(frozen=True)
class PrefillTimeline:
    """What the prefiller did for one transfer."""

    transfer: str
    transport: str
    chunks: tuple[ChunkTimes, ...]

    def computed(self) -> list[ChunkTimes]:
        """The chunks that a forward pass computed, in order; pages that were cached before go out in none."""
        return sorted((c for c in self.chunks if c.forward_end_ns > 0), key=lambda chunk: chunk.first_token)

    def last_layer_ns(self) -> int:
        return max(layer.readable_ns for chunk in self.chunks for layer in chunk.layers)


@dataclass(frozen=True)
class FetchTimeline:
    """What the decoder did for one transfer."""

    transfer: str
    granted_ns: int
    ready_ns: int
    pages: int
    length_bytes: int


def prefills(log: str) -> dict[str, PrefillTimeline]:
    """The last timeline of each transfer in a prefiller's log."""
    found = {}
    for fields in lines(log):
        if fields["side"] == "prefiller":
            chunks = tuple(ChunkTimes.parse(chunk) for chunk in fields.get("chunks", ()))
            found[fields["transfer"]] = PrefillTimeline(fields["transfer"], fields["transport"], chunks)
    return found


def fetches(log: str) -> dict[str, FetchTimeline]:
    """The last timeline of each transfer in a decoder's log."""
    found = {}
    for fields in lines(log):
        if fields["side"] == "decoder":
            found[fields["transfer"]] = FetchTimeline(
                fields["transfer"], fields["grantedNs"], fields["readyNs"], fields["pages"], fields["bytes"]
            )
    return found


def lines(log: str) -> Iterator[dict[str, Any]]:
    for match in LINE.finditer(log):
        yield json.loads(match.group(1))
