"""The forward passes of one worker, as its messenger is told of them: when the pass begins, or when it is over.

The worker's main thread only. It never waits, but once for the GPU, whose first pass that is sent is a check.
"""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Callable, Iterable, Sequence

from kv_connector._facade import Command
from kv_connector.cuda_driver import CudaError
from kv_connector.first_pass import FirstPass
from kv_connector.layer_counter import LayerCounter


class StepEnd(enum.Enum):
    """How the messenger took a step's end."""

    TOLD = enum.auto()
    LOST = enum.auto()
    """What the step computed is not sent."""
    REFUSED = enum.auto()
    """It was told the step, and does not know that it is over."""


class ToldSteps:
    """Steps that compute what is to be sent. Each that has begun is ended before the next one begins."""

    def __init__(
        self,
        submit: Callable[[Command], bool],
        counter: LayerCounter,
        layer_names: Iterable[str],
        first_pass: FirstPass | None,
        logger: logging.Logger,
    ) -> None:
        """``submit`` tells the messenger, False if it refuses; ``first_pass`` is None where this thread counts."""
        self._submit = submit
        self._counter = counter
        self._layer_names = frozenset(layer_names)
        self._first_pass = first_pass
        self._logger = logger
        self._step = 0
        self._chunks_to_tell: Sequence[Command] = ()
        """Those of a step that is told when it is over."""
        self._hooks_count = False
        """Whether layers of the step are counted."""
        self._forward_over = False
        """Whether the model's own layers are done; a drafter's follow, if there is one."""
        self._said_out_of_order = False

    @property
    def first_pass_is_right(self) -> bool:
        """Whether the GPU has counted a pass as it should; False where this thread counts, and none is checked."""
        return self._first_pass is not None and self._first_pass.is_right

    @property
    def wants_layers(self) -> bool:
        """Whether the forward pass computes KV that is to be sent and counts it, or a graph is captured that will."""
        return self._hooks_count or self._counter.is_capturing

    def begin(self, step: int, chunks: Sequence[Command], *, layers_are_right: bool) -> bool:
        """Before the forward pass; False = what it computes is not sent.

        ``layers_are_right``: whether every messenger of the engine has counted a first pass right, on GPUs. Until then
        a step is told when it is over: its layers leave together, and later.
        """
        self._step = step
        self._forward_over = False
        if self._first_pass is None or (self._first_pass.is_right and layers_are_right):
            self._hooks_count = self._tell(chunks)
            return self._hooks_count
        self._chunks_to_tell = chunks
        if self._first_pass.is_due:
            self._first_pass.begin()
            self._hooks_count = self._first_pass.is_running
        return True

    def _tell(self, chunks: Sequence[Command]) -> bool:
        try:
            counter_start = self._counter.begin_step()
        except CudaError:
            self._logger.exception("the step's layers cannot be counted: what it computes is not sent")
            return False
        if self._submit({"do": "step", "step": self._step, "counterStart": counter_start, "chunks": chunks}):
            return True
        self._fail_on_device()
        return False

    def layer_complete(self, layer_name: str) -> None:
        """The KV of a layer is written. Layers that share another's KV are passed over.

        So are a drafter's, whose hooks fire in each of its passes: the end of the step releases them.
        """
        if layer_name in self._layer_names and (not self._forward_over or self._counter.is_capturing):
            self._counter.layer_complete(layer_name)

    def forward_over(self) -> None:
        """The model's own layers are done, or have failed: a check counts no more, also of what a drafter's graphs do.

        vLLM says so before it ends the step where a drafter runs, and in any order with the end where none does.
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
        """Behind the forward pass. If it failed, its pages hold nothing that may be sent."""
        self.forward_over()
        self._hooks_count = False
        chunks, self._chunks_to_tell = self._chunks_to_tell, ()
        if sys.exception() is not None:
            self._logger.error("the forward pass failed: what it computed is not sent")
            return StepEnd.LOST if chunks else self._abandon()
        if chunks and not self._tell(chunks):
            return StepEnd.LOST
        try:
            counter_end = self._counter.end_step()
        except CudaError:
            self._logger.exception("the end of the step cannot be counted: what it computed is not sent")
            return self._abandon()
        if not chunks:
            self._say_if_out_of_order()
        told = self._submit({"do": "stepEnded", "step": self._step, "counterEnd": counter_end})
        return StepEnd.TOLD if told else StepEnd.REFUSED

    def _abandon(self) -> StepEnd:
        self._fail_on_device()
        self._submit({"do": "stepFailed", "step": self._step})
        return StepEnd.LOST

    def _fail_on_device(self) -> None:
        try:
            self._counter.fail_step()
        except CudaError:
            self._logger.exception("a step that failed cannot be ended on the device")

    def _say_if_out_of_order(self) -> None:
        """vLLM switches hooks off in its dummy passes, so the first step that is told shows their order."""
        if self._counter.steps_out_of_order and not self._said_out_of_order:
            self._said_out_of_order = True
            self._logger.warning(
                "this model's layers do not finish in their order: those behind the first that is out of order leave"
                " when their forward pass is over"
            )
