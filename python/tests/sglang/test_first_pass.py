"""The check of a prefiller's first pass, against the stand-in for NVIDIA's driver: nothing here has run on a GPU."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_pair import GpuPair, the_device

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

OUT_OF_MEMORY = 2
LOGGER = "sglang.srt.kv_messenger"


class FirstPasses:
    """What SGLang's scheduler runs on a prefiller that has just started; what would be told of its passes is noted."""

    def __init__(self, pair: GpuPair, monkeypatch: pytest.MonkeyPatch) -> None:
        from kv_connector.sglang import hooks

        self.steps = pair.pair.prefiller.endpoint.steps
        self.planned = 0
        self.layers = list(pair.model.layers)
        manager = SimpleNamespace(steps=self.steps)
        self._scheduler = SimpleNamespace(
            disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager), enable_overlap=False
        )
        monkeypatch.setattr(hooks, "_plan", self._plan)
        self._run_batch = hooks.run_batch

    def _plan(self, *_: object) -> list[Any]:
        self.planned += 1
        return []

    def run(self, forward: Callable[[], object], computes_prompt: bool = True) -> None:
        batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: computes_prompt), reqs=[])
        assert self._run_batch(lambda *_: forward() or "result", self._scheduler, batch) == "result"

    def eager(self, layers: list[Any]) -> Callable[[], object]:
        return lambda: [layer() for layer in layers] and None

    def graph(self, layers: list[Any]) -> Callable[[], object]:
        return the_device().capture(lambda: [layer() for layer in layers] and None)


@pytest.fixture
def first_passes(gpu_pair: GpuPair, monkeypatch: pytest.MonkeyPatch) -> FirstPasses:
    return FirstPasses(gpu_pair, monkeypatch)


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_should_report_passes_when_the_first_that_computes_a_prompt_was_counted_right(
    first_passes: FirstPasses, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    forward = getattr(first_passes, way)(first_passes.layers)
    first_passes.run(first_passes.eager(first_passes.layers[:1]), computes_prompt=False)
    with caplog.at_level(logging.INFO, LOGGER):
        first_passes.run(forward)
    assert first_passes.planned == 0
    assert "the first forward pass was counted correctly" in caplog.text
    first_passes.run(forward)
    assert first_passes.planned == 1


@pytest.mark.parametrize(
    ("sentence", "way"),
    [
        ("counted 4 KV buffers, expected 8", lambda passes: passes.graph(passes.layers[:2])),
        ("counted 0 KV buffers, expected 8", lambda _: lambda: None),
        ("counted 16 KV buffers, expected 8", lambda passes: twice(passes.graph(passes.layers))),
        (
            "counted 8 KV buffers before one that was out of order, expected 8",
            lambda passes: passes.eager([*passes.layers, passes.layers[0]]),
        ),
        (
            "counted 2 KV buffers before one that was out of order, expected 8",
            lambda passes: passes.eager([passes.layers[at] for at in (0, 2, 1, 3)]),
        ),
    ],
)
def test_should_report_no_pass_when_the_first_was_counted_otherwise(
    first_passes: FirstPasses, caplog: pytest.LogCaptureFixture, sentence: str, way: Callable[[FirstPasses], Any]
) -> None:
    first_passes.run(way(first_passes))
    assert sentence in caplog.text
    first_passes.run(first_passes.eager(first_passes.layers))
    assert first_passes.planned == 0


def twice(launch: Callable[[], object]) -> Callable[[], None]:
    def both() -> None:
        launch()
        launch()

    return both


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("cuLaunchKernel", "the first pass cannot be counted"),
        ("cuStreamSynchronize", "the end of the first forward pass"),
    ],
)
def test_should_report_no_pass_when_the_driver_refuses_to_count_the_first(
    first_passes: FirstPasses, caplog: pytest.LogCaptureFixture, call: str, sentence: str
) -> None:
    the_device().stand_in.standInFail(call.encode(), 1, OUT_OF_MEMORY)
    first_passes.run(first_passes.eager(first_passes.layers))
    assert sentence in caplog.text
    first_passes.run(first_passes.eager(first_passes.layers))
    assert first_passes.planned == 0


def test_should_end_the_check_of_a_first_pass_that_failed(first_passes: FirstPasses) -> None:
    def forward() -> None:
        first_passes.layers[0]()
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        first_passes.run(forward)
    first_passes.run(first_passes.eager(first_passes.layers))
    assert first_passes.planned == 0
    counter = first_passes.steps._counter
    assert counter.begin_step() == counter.position


def test_should_check_the_first_pass_where_sglang_queues_it() -> None:
    from kv_connector.memory.first_pass import FirstPass
    from kv_connector.sglang.first_pass import run_checked

    order: list[str] = []

    @contextlib.contextmanager
    def stream() -> Iterator[None]:
        order.append("into")
        yield
        order.append("out")

    def end_check() -> int:
        order.append("end")
        return 8

    counter = SimpleNamespace(begin_check=lambda: order.append("begin"), end_check=end_check, steps_out_of_order=0)
    first_pass = FirstPass(counter, 8, "KV buffers", logging.getLogger(LOGGER))  # type: ignore[arg-type]
    run_checked(first_pass, lambda: order.append("pass"), stream)
    assert order == ["into", "begin", "out", "pass", "into", "end", "out"]
    assert first_pass.is_right
