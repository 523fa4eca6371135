"""One forward pass as the messenger hears of it: its begin when its pages are known, and then its end."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.sglang.exchange import Exchange, PlannedChunk

logger = logging.getLogger("sglang.srt.kv_messenger")


@dataclass(frozen=True, slots=True)
class ComingChunks:
    """The chunks of a forward pass whose page numbers come from the device."""

    event: Any
    """Over when they are here; None = they are."""
    plan: Callable[[], Sequence[PlannedChunk]]
    """Plans the chunks by then: a request may have ended, been sent or found a twin since the pass was queued."""

    @classmethod
    def known(cls, chunks: Sequence[PlannedChunk]) -> ComingChunks:
        """Chunks that are planned already."""
        return cls(None, lambda: chunks)


class _State(enum.Enum):
    COMING = enum.auto()
    BEGUN = enum.auto()
    UNREPORTED = enum.auto()
    """No chunk of it is sent early: it has failed before its begin was reported, or the messenger has not taken it."""


class ReportedStep:
    """Its begin is reported at most once, and its end only after it. Used by the scheduler's thread only.

    It may begin for the messenger while it is computed, or when it is over: layers that have been counted by then are
    readable at once.
    """

    def __init__(
        self, exchange: Exchange, index: int, counter_start: int, plan: Callable[[], Sequence[PlannedChunk]]
    ) -> None:
        self._exchange = exchange
        self._index = index
        self._counter_start = counter_start
        self._plan = plan
        self._state = _State.COMING
        self._counter_end: int | None = None
        """Where the counter stands at its end; None = it is not queued to its end."""

    def begin(self) -> None:
        """Its page numbers are here. Raises nothing: what cannot be planned leaves after the pass."""
        if self._state is not _State.COMING:
            return
        chunks = self._chunks()
        taken = bool(chunks) and self._exchange.step(
            self._index, self._counter_start, [planned.chunk for planned in chunks]
        )
        self._state = _State.BEGUN if taken else _State.UNREPORTED
        if not taken:
            return
        for planned in chunks:
            planned.on_taken()
        if self._counter_end is not None:
            self._exchange.step_ended(self._index, self._counter_end)

    def end(self, counter_end: int) -> None:
        """It is queued to its end."""
        self._counter_end = counter_end
        if self._state is _State.BEGUN:
            self._exchange.step_ended(self._index, counter_end)

    def fail(self) -> None:
        """It has failed; if its begin was not reported, it never is."""
        if self._state is _State.BEGUN:
            self._exchange.step_failed(self._index)
        self._state = _State.UNREPORTED

    def _chunks(self) -> Sequence[PlannedChunk]:
        try:
            return self._plan()
        except Exception:
            logger.exception("a forward pass could not be planned; its chunks leave afterwards")
            return ()
