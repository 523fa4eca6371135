"""Checks that a GPU counts one forward pass correctly, each layer once and in order, before layers are sent early.

The checked pass runs as the engine runs any pass: on its stream, eagerly or as captured graphs. It is reported to the
messenger only when it is over, so its KV is sent after it, as without layer counting.
"""

from __future__ import annotations

import logging

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.layer_counter import LayerCounter


class FirstPass:
    """The check of one messenger's counter. Used by the thread that queues passes, which waits for the GPU once.

    Calls must be made with the stream of the pass as the current one.
    """

    def __init__(self, counter: LayerCounter, expected: int, counted_things: str, logger: logging.Logger) -> None:
        """``expected`` is the number of layers that a pass counts; ``counted_things`` is their name in the log."""
        self._counter = counter
        self._expected = expected
        self._counted_things = counted_things
        self._logger = logger
        self._out_of_order = 0
        self.is_due = True
        """Whether no pass has been checked yet."""
        self.is_running = False
        self.is_right = False
        """Whether the pass was counted correctly: from then on passes may be reported when they begin."""

    def begin(self) -> None:
        """Begins the check, before a pass that computes a prompt."""
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
        """Ends the check, after the pass, and logs its result; does nothing if the check is not running."""
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
        """Ends the check after a pass that failed, which shows nothing: the next pass is checked."""
        if not self.is_running:
            return
        self.is_running = False
        self.is_due = True
        try:
            self._counter.fail_step()
        except CudaError:
            self._logger.exception("a first forward pass that failed cannot be ended on this GPU")
