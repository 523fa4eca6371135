"""What the messenger hears of the forward passes of an SGLang prefiller."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest

from kv_connector import LayerCounter
from kv_connector.runtime.commands import Chunk
from kv_connector.sglang.exchange import PlannedChunk
from kv_connector.sglang.layerwise import LayerwiseSteps
from kv_connector.sglang.twins import Twins

NAMES = ("layer.0", "layer.1")


class Exchange:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.takes_steps = True

    def step(self, step: int, counter_start: int, _chunks: Sequence[Any]) -> bool:
        if self.takes_steps:
            self.calls.append(("step", step, counter_start))
        return self.takes_steps

    def step_ended(self, step: int, counter_end: int) -> None:
        self.calls.append(("ended", step, counter_end))

    def step_failed(self, step: int) -> None:
        self.calls.append(("failed", step))


class Passes:
    """A prefiller whose model fires the hooks of the layers that it is given."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.word = ctypes.c_uint64()
        self.counter = LayerCounter(ctypes.addressof(self.word), NAMES)
        self._steps = LayerwiseSteps(self.exchange, self.counter, Twins(16, 1))  # type: ignore[arg-type]

    def run(self, *layers: str, fails: bool = False) -> None:
        def forward() -> None:
            for layer in layers:
                self.counter.layer_complete(layer)
            if fails:
                raise RuntimeError("no memory")

        self._steps.run(lambda: [PlannedChunk(Chunk("1", "1", "", 16, 0, 0, 16, []), lambda: None)], forward)


def test_should_report_where_the_counter_stands_when_a_pass_begins_and_ends() -> None:
    passes = Passes()
    passes.run(*NAMES)
    passes.run(NAMES[0])
    assert passes.exchange.calls == [("step", 1, 0), ("ended", 1, 2), ("step", 2, 2), ("ended", 2, 3)]


def test_should_report_a_pass_that_failed_and_count_the_next_one_behind_its_layers() -> None:
    passes = Passes()
    with pytest.raises(RuntimeError, match="no memory"):
        passes.run(NAMES[0], fails=True)
    passes.run(*NAMES)
    assert passes.exchange.calls == [("step", 1, 0), ("failed", 1), ("step", 2, 3), ("ended", 2, 5)]
    assert passes.word.value == 5


def test_should_report_no_end_of_a_step_that_the_messenger_did_not_take() -> None:
    passes = Passes()
    passes.exchange.takes_steps = False
    passes.run(*NAMES)
    with pytest.raises(RuntimeError, match="no memory"):
        passes.run(fails=True)
    assert passes.exchange.calls == []
