"""Reads the ``kv_messenger timeline {json}`` lines of engines' logs: what happened when to each transfer.

The fields are described in ``docs/operations.md``. Times are nanoseconds of a machine's monotonic clock: those of two
lines compare when one machine has written both; 0 means that a point was not reached. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

LINE = re.compile(r"kv_messenger timeline (\{.*\})")


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """When one layer of a chunk was seen complete, handed to the transfer engine, and had left."""

    layer: int
    readable_ns: int
    submitted_ns: int
    left_ns: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Of a layer's JSON object."""
        return cls(fields["layer"], fields["readableNs"], fields["submittedNs"], fields["leftNs"])


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One forward pass over tokens of the prompt, and its layers."""

    first_token: int
    end_token: int
    forward_start_ns: int
    forward_end_ns: int
    layers: tuple[LayerTimes, ...]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Of a chunk's JSON object."""
        layers = tuple(LayerTimes.parse(layer) for layer in fields["layers"])
        return cls(fields["firstToken"], fields["endToken"], fields["forwardStartNs"], fields["forwardEndNs"], layers)

    def left_early(self) -> int:
        """How many layers had left before this chunk's forward pass ended."""
        return sum(1 for layer in self.layers if layer.left_ns < self.forward_end_ns)

    def wholly_left_ns(self) -> int:
        """When the last layer had left."""
        return max(layer.left_ns for layer in self.layers)


@dataclass(frozen=True, slots=True)
class PrefillTimeline:
    """What one rank of a prefiller did for one transfer; ``chunks`` is empty unless timelines are "full"."""

    transfer: str
    transport: str
    prompt_tokens: int
    length_bytes: int
    grant_received_ns: int
    first_submitted_ns: int
    last_left_ns: int
    forward_end_ns: int
    layers_sent: int
    layers_sent_early: int
    chunks: tuple[ChunkTimes, ...]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Of a prefiller's line."""
        return cls(
            fields["transfer"],
            fields["transport"],
            fields.get("promptTokens", 0),
            fields.get("bytes", 0),
            fields.get("grantReceivedNs", 0),
            fields.get("firstSubmittedNs", 0),
            fields.get("lastLeftNs", 0),
            fields.get("forwardEndNs", 0),
            fields.get("layersSent", 0),
            fields.get("layersSentEarly", 0),
            tuple(ChunkTimes.parse(chunk) for chunk in fields.get("chunks", ())),
        )

    def computed(self) -> list[ChunkTimes]:
        """The chunks that a forward pass computed, in order; pages that were cached before go out in none."""
        return sorted((c for c in self.chunks if c.forward_end_ns > 0), key=lambda chunk: chunk.first_token)

    def left_early(self) -> tuple[int, int]:
        """How many layers of computed chunks had left before their pass ended, and of how many."""
        chunks = self.computed()
        return sum(chunk.left_early() for chunk in chunks), sum(len(chunk.layers) for chunk in chunks)

    def last_layer(self) -> LayerTimes:
        """That which was seen complete last of all."""
        return max((layer for chunk in self.chunks for layer in chunk.layers), key=lambda layer: layer.readable_ns)

    def last_layer_ns(self) -> int:
        """When the last layer of all was seen complete."""
        return self.last_layer().readable_ns


@dataclass(frozen=True, slots=True)
class FetchTimeline:
    """What one rank of a decoder did for one transfer."""

    transfer: str
    asked_ns: int
    granted_ns: int
    ready_ns: int
    polled_ns: int
    pages: int
    length_bytes: int

    def ready_ms_after(self, prefill: PrefillTimeline) -> float:
        """From the last layer until all had arrived, of sides on one machine."""
        return (self.ready_ns - prefill.last_layer_ns()) / 1e6

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Of a decoder's line."""
        return cls(
            fields["transfer"],
            fields.get("askedNs", 0),
            fields["grantedNs"],
            fields["readyNs"],
            fields.get("polledNs", 0),
            fields["pages"],
            fields["bytes"],
        )


Timeline = PrefillTimeline | FetchTimeline


def timelines(log: str) -> Iterator[Timeline]:
    """Those of both sides, in the order of the log; a line that was cut off, as a killed engine's last one, is none."""
    for match in LINE.finditer(log):
        try:
            fields = json.loads(match.group(1))
        except json.JSONDecodeError:
            continue
        yield PrefillTimeline.parse(fields) if fields["side"] == "prefiller" else FetchTimeline.parse(fields)


def prefills(log: str) -> dict[str, PrefillTimeline]:
    """The last timeline of each transfer in a prefiller's log."""
    return {found.transfer: found for found in timelines(log) if isinstance(found, PrefillTimeline)}


def fetches(log: str) -> dict[str, FetchTimeline]:
    """The last timeline of each transfer in a decoder's log."""
    return {found.transfer: found for found in timelines(log) if isinstance(found, FetchTimeline)}
