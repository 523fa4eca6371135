"""Has a GPU count one forward pass before any pass is believed: each layer once and in order, or none leaves early.

What is counted is the pass as SGLang runs it: on its stream, eagerly or as the graphs that it captured. It is the first
pass that computes a prompt, which is SGLang's own warm-up request unless that is switched off. Nothing of it is told to
the messenger, so what it computes leaves when it is over, as where no layers are counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from kv_connector.cuda_driver import CudaError
from kv_connector.layer_counter import LayerCounter

logger = logging.getLogger("sglang.srt.kv_messenger")


class FirstPass:
    """The check of one messenger's counter. The scheduler's thread only, which waits once for the GPU."""

    def __init__(self, counter: LayerCounter, layer_count: int) -> None:
        """``layer_count``: how many of the counter's layers a pass counts."""
        self._counter = counter
        self._layer_count = layer_count
        self._is_over = False
        self.is_right = False
        """Whether it has counted as it should: passes may be told from then on."""

    def run(
        self, computes_prompt: bool, forward: Callable[[], Any], on_stream: Callable[[], AbstractContextManager[Any]]
    ) -> Any:
        """Runs a forward pass, and checks the first that computes a prompt; ``on_stream`` as for one that is told."""
        if self._is_over or not computes_prompt:
            return forward()
        self._is_over = True
        out_of_order = self._counter.steps_out_of_order
        try:
            with on_stream():
                self._counter.begin_check()
        except CudaError:
            logger.exception("chunks leave after their forward pass: the first pass cannot be counted on this GPU")
            return forward()
        try:
            result = forward()
        except BaseException:
            self._counted(on_stream)
            raise
        counted = self._counted(on_stream)
        in_order = self._counter.steps_out_of_order == out_of_order
        self.is_right = counted == self._layer_count and in_order
        if self.is_right:
            logger.info("the first forward pass was counted right: layers leave while the next ones run")
        else:
            logger.warning(
                "chunks leave after their forward pass: the first pass on this GPU counted %d KV buffers%s, expected"
                " %d, each once and in order",
                counted,
                "" if in_order else " before one that was out of order",
                self._layer_count,
            )
        return result

    def _counted(self, on_stream: Callable[[], AbstractContextManager[Any]]) -> int:
        try:
            with on_stream():
                return self._counter.end_check()
        except CudaError:
            logger.exception("the end of the first forward pass cannot be counted on this GPU")
            return 0
