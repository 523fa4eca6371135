"""Has a GPU count one forward pass before any pass is believed: each layer once and in order, or none leaves early.

What is counted is a pass as the engine runs it: on its stream, eagerly or as the graphs that it captured. Nothing of it
is told to the messenger before it is over, so what it computes leaves then, as where no layers are counted.
"""

from __future__ import annotations

import logging

from kv_connector.cuda_driver import CudaError
from kv_connector.layer_counter import LayerCounter


class FirstPass:
    """The check of one messenger's counter. The thread that queues passes only, which waits once for the GPU.

    Each call comes where the pass is queued: in the order of its stream.
    """

    def __init__(self, counter: LayerCounter, expected: int, counted_things: str, logger: logging.Logger) -> None:
        """``expected``: how many of the counter's layers a pass counts; ``counted_things``: the log's word for them."""
        self._counter = counter
        self._expected = expected
        self._counted_things = counted_things
        self._logger = logger
        self._out_of_order = 0
        self.is_due = True
        """Whether no pass was checked yet."""
        self.is_running = False
        self.is_right = False
        """Whether it has counted as it should: passes may be told from then on."""

    def begin(self) -> None:
        """Before a pass that computes a prompt."""
        self.is_due = False
        self._out_of_order = self._counter.steps_out_of_order
        try:
            self._counter.begin_check()
        except CudaError:
            self._logger.exception(
                "chunks leave after their forward pass: the first pass cannot be counted on this GPU"
            )
            return
        self.is_running = True

    def end(self) -> None:
        """Behind the pass, unless it could not be counted from its beginning: says in the log what it has shown."""
        if not self.is_running:
            return
        self.is_running = False
        try:
            counted = self._counter.end_check()
        except CudaError:
            self._logger.exception("the end of the first forward pass cannot be counted on this GPU")
            counted = 0
        in_order = self._counter.steps_out_of_order == self._out_of_order
        self.is_right = counted == self._expected and in_order
        if self.is_right:
            self._logger.info("the first forward pass was counted correctly: later layers leave while their pass runs")
            return
        self._logger.warning(
            "chunks leave after their forward pass: the first pass on this GPU counted %d %s%s, expected %d, each once"
            " and in order",
            counted,
            self._counted_things,
            "" if in_order else " before one that was out of order",
            self._expected,
        )

    def fail(self) -> None:
        """Behind a pass that failed, which shows nothing: the next one is checked."""
        if not self.is_running:
            return
        self.is_running = False
        self.is_due = True
        try:
            self._counter.fail_step()
        except CudaError:
            self._logger.exception("a first forward pass that failed cannot be ended on this GPU")
