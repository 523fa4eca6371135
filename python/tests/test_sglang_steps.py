"""What the messenger hears of the forward passes of an SGLang prefiller."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kv_connector import LayerCounter
from kv_connector.runtime.commands import Chunk
from kv_connector.sglang.exchange import PlannedChunk
from kv_connector.sglang.layerwise import LayerwiseSteps
from kv_connector.sglang.page_numbers import PageNumbers
from kv_connector.sglang.reported_step import ComingChunks
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


class Event:
    """Of a device."""

    def __init__(self) -> None:
        self.over = False

    def query(self) -> bool:
        return self.over


class Passes:
    """A prefiller whose model fires the hooks of its layers, and looks for page numbers behind each."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        self.word = ctypes.c_uint64()
        self.counter = LayerCounter(ctypes.addressof(self.word), NAMES)
        self.numbers = PageNumbers(None)
        self._steps = LayerwiseSteps(
            self.exchange,  # type: ignore[arg-type]
            self.counter,
            Twins(16, 1),
            page_numbers=self.numbers,
        )
        self.taken = 0

    def run(
        self,
        *layers: str,
        fails: bool = False,
        event: Event | None = None,
        plan: Callable[[], Sequence[PlannedChunk]] | None = None,
        comes_behind: str = "",
    ) -> None:
        """``event``: of its page numbers, which come behind this layer; None = they are here."""

        def forward() -> None:
            self.numbers.look()
            for layer in layers:
                self.counter.layer_complete(layer)
                if event is not None and layer == comes_behind:
                    event.over = True
                self.numbers.look()
            if fails:
                raise RuntimeError("no memory")

        chunks = plan or self.planned
        self._steps.run(chunks if event is None else lambda: ComingChunks(event, chunks), forward)

    def planned(self) -> list[PlannedChunk]:
        return [PlannedChunk(Chunk("1", "1", "", 16, 0, 0, 16, []), self._take)]

    def _take(self) -> None:
        self.taken += 1


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


@pytest.mark.parametrize("behind", NAMES)
def test_should_report_a_pass_while_it_is_queued_once_its_page_numbers_come(behind: str) -> None:
    passes = Passes()
    calls: list[int] = []
    passes.exchange.step = lambda *given: (
        bool(calls.append(passes.word.value)) or Exchange.step(passes.exchange, *given)
    )  # type: ignore[method-assign]
    passes.run(*NAMES, event=Event(), comes_behind=behind)
    assert calls == [1 + NAMES.index(behind)], "reported behind the layer"
    assert passes.exchange.calls == [("step", 1, 0), ("ended", 1, 2)]


def test_should_report_begin_and_end_of_a_pass_whose_page_numbers_come_behind_it() -> None:
    passes, event = Passes(), Event()
    passes.run(*NAMES, event=event)
    passes.numbers.look()
    assert passes.exchange.calls == []
    assert not passes.taken
    event.over = True
    passes.numbers.look()
    assert passes.exchange.calls == [("step", 1, 0), ("ended", 1, 2)]
    assert passes.taken == 1
    assert not passes.numbers.are_coming


def test_should_report_passes_in_their_order_whatever_comes_first() -> None:
    passes, first, later = Passes(), Event(), Event()
    passes.run(*NAMES, event=first)
    passes.run(*NAMES, event=later, comes_behind=NAMES[0])
    passes.run(*NAMES)
    assert passes.exchange.calls == []
    first.over = True
    passes.numbers.look()
    assert passes.exchange.calls == [
        *(("step", 1, 0), ("ended", 1, 2)),
        *(("step", 2, 2), ("ended", 2, 4)),
        *(("step", 3, 4), ("ended", 3, 6)),
    ]


@pytest.mark.parametrize("behind", ["", NAMES[0]])
def test_should_not_report_a_pass_that_failed_before_its_page_numbers_came(behind: str) -> None:
    passes, event = Passes(), Event()
    with pytest.raises(RuntimeError, match="no memory"):
        passes.run(NAMES[0], fails=True, event=event, comes_behind=behind)
    event.over = True
    passes.numbers.look()
    assert passes.exchange.calls == ([("step", 1, 0), ("failed", 1)] if behind else [])
    passes.run(*NAMES, event=event)
    assert passes.exchange.calls[-2:] == [("step", 2, 3), ("ended", 2, 5)]


def test_should_report_no_pass_whose_requests_have_all_ended_when_its_page_numbers_come() -> None:
    passes, event = Passes(), Event()
    passes.run(*NAMES, event=event, plan=list, comes_behind=NAMES[0])
    assert passes.exchange.calls == []


def test_should_compute_what_cannot_be_planned_when_its_page_numbers_come(caplog: pytest.LogCaptureFixture) -> None:
    passes = Passes()

    def plan() -> list[PlannedChunk]:
        raise AssertionError("3 pages for positions 0 to 4")

    passes.run(*NAMES, event=Event(), plan=plan, comes_behind=NAMES[0])
    assert passes.exchange.calls == []
    assert "3 pages for positions 0 to 4" in caplog.text
    assert "a forward pass could not be planned; its chunks leave afterwards" in caplog.text
