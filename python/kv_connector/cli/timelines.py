"""Parses the ``kv_messenger timeline {json}`` lines of engines' logs, with the times of each transfer's events.

The fields are described in ``docs/operations.md``. Times are nanoseconds of a machine's monotonic clock, and comparable
only between lines from the same machine; 0 means that a point was not reached. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

NUMBER_MAX = (1 << 63) - 1
"""Of Java's clock and counters."""
LINE = re.compile(r"kv_messenger timeline (\{.*\})")


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The times at which one layer of a chunk was seen complete, was handed to the transfer engine, and had left."""

    layer: int
    readable_ns: int
    submitted_ns: int
    left_ns: int

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Parses a layer's JSON object."""
        return cls(fields["layer"], fields["readableNs"], fields["submittedNs"], fields["leftNs"])


@dataclass(frozen=True, slots=True)
class ChunkTimes:
    """One forward pass over a part of the prompt, with its layers."""

    first_token: int
    end_token: int
    forward_start_ns: int
    forward_end_ns: int
    layers: tuple[LayerTimes, ...]

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Parses a chunk's JSON object."""
        layers = tuple(LayerTimes.parse(layer) for layer in fields["layers"])
        return cls(fields["firstToken"], fields["endToken"], fields["forwardStartNs"], fields["forwardEndNs"], layers)

    def left_early(self) -> int:
        """The number of layers that had left before this chunk's forward pass ended."""
        return sum(1 for layer in self.layers if layer.left_ns < self.forward_end_ns)


@dataclass(frozen=True, slots=True)
class PrefillTimeline:
    """One transfer on one rank of a prefiller; ``chunks`` is empty unless timelines are "full"."""

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
        """Parses the JSON object of a prefiller's line."""
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
        """The chunks that forward passes computed, in order, without chunks of cached pages."""
        return sorted((c for c in self.chunks if c.forward_end_ns > 0), key=lambda chunk: chunk.first_token)

    def left_early(self) -> tuple[int, int]:
        """(layers of computed chunks that had left before their pass ended, all layers of these chunks)."""
        chunks = self.computed()
        return sum(chunk.left_early() for chunk in chunks), sum(len(chunk.layers) for chunk in chunks)

    def last_layer(self) -> LayerTimes:
        """The layer that was the last to be seen complete."""
        return max((layer for chunk in self.chunks for layer in chunk.layers), key=lambda layer: layer.readable_ns)

    def last_layer_ns(self) -> int:
        """The time at which the last layer was seen complete."""
        return self.last_layer().readable_ns


@dataclass(frozen=True, slots=True)
class FetchTimeline:
    """One transfer on one rank of a decoder."""

    transfer: str
    asked_ns: int
    granted_ns: int
    ready_ns: int
    polled_ns: int
    pages: int
    length_bytes: int
    answer_ns: int = 0
    """How long a request that pulled waited for the answer to its question; 0 = it asked none."""
    pages_ns: int = 0
    """How long it then waited for pages."""

    @property
    def question_ns(self) -> int:
        """When the question was asked; 0 = none was."""
        return self.asked_ns - self.pages_ns - self.answer_ns if self.answer_ns else 0

    def ready_ms_after(self, prefill: PrefillTimeline) -> float:
        """The milliseconds from the last layer until everything had arrived; both sides must be on one machine."""
        return (self.ready_ns - prefill.last_layer_ns()) / 1e6

    @classmethod
    def parse(cls, fields: dict[str, Any]) -> Self:
        """Parses the JSON object of a decoder's line."""
        return cls(
            fields["transfer"],
            fields.get("askedNs", 0),
            fields["grantedNs"],
            fields["readyNs"],
            fields.get("polledNs", 0),
            fields["pages"],
            fields["bytes"],
            1000 * fields.get("answerMicros", 0),
            1000 * fields.get("pagesMicros", 0),
        )


Timeline = PrefillTimeline | FetchTimeline


def timelines(log: str) -> Iterator[Timeline]:
    """The timelines of both sides, in the order of the log; incomplete lines, as of a killed engine, are skipped.

    So are lines that only look like one: logs have what clients wrote.
    """
    for match in LINE.finditer(log):
        try:
            read = json.loads(match.group(1))
            found = PrefillTimeline.parse(read) if read["side"] == "prefiller" else FetchTimeline.parse(read)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            continue
        if _is_sound(found):
            yield found


def _is_sound(found: Any) -> bool:
    """Whether each field has its type, as in lines that a messenger wrote."""
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if isinstance(value, tuple):
            if not all(map(_is_sound, value)):
                return False
        elif field.type == "str":
            if not isinstance(value, str):
                return False
        elif type(value) is not int or abs(value) > NUMBER_MAX:
            return False
    return True


def prefills(log: str) -> dict[str, PrefillTimeline]:
    """The last timeline of each transfer in a prefiller's log."""
    return {found.transfer: found for found in timelines(log) if isinstance(found, PrefillTimeline)}


def fetches(log: str) -> dict[str, FetchTimeline]:
    """The last timeline of each transfer in a decoder's log."""
    return {found.transfer: found for found in timelines(log) if isinstance(found, FetchTimeline)}
