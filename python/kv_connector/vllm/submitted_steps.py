"""Reports the forward passes of one worker to its messenger: when a pass begins, or when it is over.

Used by the worker's main thread only. It waits only once, for the GPU's first pass that is sent: that pass is checked.
"""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Callable, Iterable, Sequence

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.memory.first_pass import FirstPass
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.runtime.commands import Chunk, Command, Step, StepEnded, StepFailed


class StepEnd(enum.Enum):
    """The result of reporting a step's end to the messenger."""

    SUBMITTED = enum.auto()
    LOST = enum.auto()
    """The KV that the step computed is not sent."""
    REFUSED = enum.auto()
    """The messenger has accepted the step, but not its end."""


class SubmittedSteps:
    """The steps that compute KV to be sent. Each step that has begun is ended before the next one begins."""

    def __init__(
        self,
        submit: Callable[[Command], bool],
        counter: LayerCounter,
        layer_names: Iterable[str],
        first_pass: FirstPass | None,
        logger: logging.Logger,
    ) -> None:
        """``submit`` returns False if the messenger refuses a command; ``first_pass`` is None if this thread counts."""
        self._submit = submit
        self._counter = counter
        self._layer_names = frozenset(layer_names)
        self._first_pass = first_pass
        self._logger = logger
        self._step = 0
        self._chunks_unsent: Sequence[Chunk] = ()
        """The chunks of a step that is reported when it is over."""
        self._hooks_count = False
        """Whether the step's layers are counted."""
        self._forward_over = False
        """Whether the model's own layers are done; those of a drafter, if there is one, follow."""
        self._warned_out_of_order = False

    @property
    def first_pass_is_right(self) -> bool:
        """Whether the GPU has counted a pass correctly; False if this thread counts, since nothing is checked then."""
        return self._first_pass is not None and self._first_pass.is_right

    @property
    def wants_layers(self) -> bool:
        """Whether this pass counts layers of KV to be sent, or a graph is being captured whose replays will."""
        return self._hooks_count or self._counter.is_capturing

    def begin(self, step: int, chunks: Sequence[Chunk], *, layers_are_right: bool) -> bool:
        """Begins a step, before its forward pass; False: the KV that it computes is not sent.

        ``layers_are_right``: whether every messenger of the engine has found its GPU's first pass counted correctly.
        Until then a step is reported when it is over, so that its layers are sent together, and later.
        """
        self._step = step
        self._forward_over = False
        if self._first_pass is None or (self._first_pass.is_right and layers_are_right):
            self._hooks_count = self._send(chunks)
            return self._hooks_count
        self._chunks_unsent = chunks
        if self._first_pass.is_due:
            self._first_pass.begin()
            self._hooks_count = self._first_pass.is_running
        return True

    def _send(self, chunks: Sequence[Chunk]) -> bool:
        try:
            counter_start = self._counter.begin_step()
        except CudaError:
            self._logger.exception("the step's layers cannot be counted: what it computes is not sent")
            return False
        if self._submit(Step(self._step, counter_start, chunks)):
            return True
        self._fail_on_device()
        return False

    def layer_complete(self, layer_name: str) -> None:
        """The KV of a layer is written. Layers that share another's KV are ignored.

        So are a drafter's layers, whose hooks fire in each of its passes: the end of the step releases them.
        """
        if layer_name in self._layer_names and (not self._forward_over or self._counter.is_capturing):
            self._counter.layer_complete(layer_name)

    def forward_over(self) -> None:
        """The model's own layers are done, or have failed: ends a check, so that it does not count a drafter's graphs.

        With a drafter, vLLM calls this before the end of the step; without one, before or after it.
        """
        self._forward_over = True
        if self._first_pass is None or not self._first_pass.is_running:
            return
        self._hooks_count = False
        if sys.exception() is None:
            self._first_pass.end()
        else:
            self._first_pass.fail()

    def end(self) -> StepEnd:
        """Ends the step, after the forward pass. If the pass failed, its pages hold nothing that may be sent."""
        self.forward_over()
        self._hooks_count = False
        chunks, self._chunks_unsent = self._chunks_unsent, ()
        if sys.exception() is not None:
            self._logger.error("the forward pass failed: what it computed is not sent")
            return StepEnd.LOST if chunks else self._abandon()
        if chunks and not self._send(chunks):
            return StepEnd.LOST
        try:
            counter_end = self._counter.end_step()
        except CudaError:
            self._logger.exception("the end of the step cannot be counted: what it computed is not sent")
            return self._abandon()
        if not chunks:
            self._say_if_out_of_order()
        taken = self._submit(StepEnded(self._step, counter_end))
        return StepEnd.SUBMITTED if taken else StepEnd.REFUSED

    def _abandon(self) -> StepEnd:
        self._fail_on_device()
        self._submit(StepFailed(self._step))
        return StepEnd.LOST

    def _fail_on_device(self) -> None:
        try:
            self._counter.fail_step()
        except CudaError:
            self._logger.exception("a step that failed cannot be ended on the device")

    def _say_if_out_of_order(self) -> None:
        """vLLM calls no hooks in its dummy passes, so the first step that is reported shows their order."""
        if self._counter.steps_out_of_order and not self._warned_out_of_order:
            self._warned_out_of_order = True
            self._logger.warning(
                "this model's layers do not finish in their order: those behind the first that is out of order leave"
                " when their forward pass is over"
            )
