"""A connector on a GPU inside vLLM's own MultiConnector: the graphs that are captured there count its layers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_prefiller import GpuPrefiller, the_device
from release import Release
from simulated_engine import LAYERS


class Store:
    """A connector that needs metadata in each layer's hooks."""

    def __init__(self) -> None:
        self.outer: Any = None
        self.hooks: list[str] = []

    def get_finished_count(self) -> int | None:
        return None

    def wait_for_layer_load(self, layer_name: str) -> None:
        assert self.outer._connector_metadata is not None, f"no metadata for {layer_name}"

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:  # noqa: ARG002
        self.wait_for_layer_load(layer_name)
        self.hooks.append(layer_name)


class Shared:
    """A prefiller on a device, inside a MultiConnector with a store."""

    def __init__(self, release: Release, monkeypatch: pytest.MonkeyPatch, *, store_first: bool) -> None:
        self.store = Store()
        self.outer = release.multi.MultiConnector.__new__(release.multi.MultiConnector)
        self.outer._vllm_config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
        self.outer._connector_metadata = None
        self.outer._connectors = [self.store]
        self.store.outer = self.outer
        state = importlib.import_module("vllm.distributed.kv_transfer.kv_transfer_state")
        monkeypatch.setattr(state, "has_kv_transfer_group", lambda: True)
        monkeypatch.setattr(state, "get_kv_transfer_group", lambda: self.outer)
        self.prefiller = GpuPrefiller(release, the_device())
        self.outer._connectors.insert(store_first, self.prefiller.connector)

    def begin(self) -> None:
        self.prefiller.begin()
        self.outer._connector_metadata = object()

    def run_pass(self) -> None:
        """As vLLM's wrapper of attention does."""
        for name in LAYERS:
            if self.outer.has_connector_metadata():
                self.outer.wait_for_layer_load(name)
                self.outer.save_kv_layer(name, None, None)

    def end(self) -> None:
        self.prefiller.end()
        self.outer._connector_metadata = None


@pytest.fixture(params=[False, True], ids=["messenger first", "store first"])
def shared(vllm_release: Release, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Shared]:
    made = Shared(vllm_release, monkeypatch, store_first=request.param)
    yield made
    made.prefiller.close()


def test_should_count_what_a_graph_repeats(shared: Shared) -> None:
    device, messenger = shared.prefiller.device, shared.prefiller.messenger
    launch = device.capture(shared.run_pass)
    shared.prefiller.connector.reset_capture_state()
    assert shared.store.hooks == [], "a connector without metadata was called"
    counted = []
    for _ in range(3):
        shared.begin()
        before = messenger.count
        launch()
        device.finish()
        counted.append(messenger.count - before)
        shared.end()
    assert counted[1:] == 2 * [len(LAYERS)], "behind the first pass, which is checked and reported when it is over"
    assert shared.prefiller.counted_right == 1
    steps, ends = messenger.of_kind("step"), messenger.of_kind("stepEnded")
    assert [end["counterEnd"] - begun["counterStart"] for begun, end in zip(steps, ends, strict=True)] == [
        len(LAYERS) + 1
    ] * 3


def test_should_count_layers_without_a_graph_in_steps_alone(shared: Shared) -> None:
    shared.run_pass()
    assert shared.store.hooks == []
    for _ in range(3):
        shared.begin()
        shared.run_pass()
        shared.end()
    assert shared.store.hooks == 3 * list(LAYERS)
    assert shared.prefiller.counted_right == 1
