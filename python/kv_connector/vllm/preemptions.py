"""Blocks of preempted requests, which the engine overwrites next: nothing reads them any more by then.

Used by the engine core's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from kv_connector.vllm.ended_prefills import EndedPrefills
from kv_connector.vllm.metadata import StepMetadata
from kv_connector.vllm.prefill_chunks import Prefill, PrefillChunks
from kv_connector.vllm.request_numbers import RequestNumbers, shown
from kv_connector.vllm.window_blocks import WindowBlocks


class Preemptions:
    """Has them fenced in the step that may overwrite them, whatever else fails in it."""

    def __init__(
        self,
        open_ones: Mapping[str, Prefill],
        ended: EndedPrefills,
        chunks: PrefillChunks,
        window_blocks: WindowBlocks,
        numbers: RequestNumbers,
        gone: Callable[[str], None],
        logger: logging.Logger,
    ) -> None:
        """``open_ones`` are prefills that are not over; ``gone`` is called for each that has lost its blocks."""
        self._prefills = open_ones
        self._ended = ended
        self._chunks = chunks
        self._window_blocks = window_blocks
        self._numbers = numbers
        self._gone = gone
        self._logger = logger

    def take(self, request_ids: Iterable[str], meta: StepMetadata) -> None:
        """The engine has preempted these. Raises nothing."""
        for request_id in request_ids:
            try:
                self._preempt(request_id, meta)
            except Exception:  # the blocks are overwritten next, whatever is known of the request here
                self._logger.exception("request %s is fenced: its preemption failed", shown(request_id))
                if request_id in self._prefills or self._ended.holds(request_id):
                    meta.preempted.append(self._numbers.of(request_id))

    def _preempt(self, request_id: str, meta: StepMetadata) -> None:
        """It stays announced."""
        self._window_blocks.let_go(request_id)  # reallocated in the next step at the earliest, after this one's fence
        self._gone(request_id)
        prefill = self._prefills.get(request_id)
        if prefill is not None and (prefill.sent_tokens or prefill.given_up):
            self._chunks.restart(prefill)
            meta.preempted.append(self._numbers.of(request_id))
        elif self._ended.holds(request_id):
            meta.preempted.append(self._numbers.of(request_id))
