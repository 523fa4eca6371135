"""SGLang's own classes with KV on a GPU, against the stand-in for NVIDIA's driver: nothing here has run on a GPU.

The messengers are real ones: they find the stand-in, which this process has loaded, under the driver's name. SGLang's
pools are made on the CPU and say that they are elsewhere, because torch has no such memory here.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import logging
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_pair import GpuPair, load, move_pages, the_device

from kv_connector.memory.cuda_driver import CudaError
from kv_connector.runtime.commands import Chunk

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

CHUNK = Chunk("1", "1", "", 16, 0, 0, 16, [])
OUT_OF_MEMORY = 2
LOGGER = "sglang.srt.kv_messenger"


def test_should_move_pages_between_devices_and_say_that_no_gpu_has_seen_it(
    gpu_pair: GpuPair, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        move_pages(gpu_pair)
    assert gpu_pair.torch.entered == 4, "pools and metadata of both sides"
    assert '"transport":"cuda"' in caplog.text
    assert all(memory["handleKind"] == "posixFd" for memory in gpu_pair.memories())
    logged = [record.getMessage() for record in caplog.get_records("setup")]
    assert sum("gpu is 'unproven'" in line and "one H100" in line for line in logged) == 2


def test_should_move_pages_that_torchs_own_allocator_has_put_on_a_device(
    gpu: Any, model: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the driver has none that can be passed on. What cudaIpc exports cannot be opened in the same process."""
    monkeypatch.setenv("KV_MESSENGER_OPTIONS", json.dumps({"gpu": "unproven", "transports": ["tcp", "shm"]}))

    def no_driver() -> Any:
        raise CudaError("no driver")

    gpu.cuda_driver = no_driver
    with warnings.catch_warnings(action="ignore"):
        made = GpuPair(gpu, tmp_path, model)
    try:
        assert made.torch.entered == 0
        assert [(memory["kind"], memory["handleKind"]) for memory in made.memories()] == [("cuda", "none")] * 16
        with caplog.at_level(logging.INFO, LOGGER):
            move_pages(made)
        assert '"transport":"tcp"' in caplog.text
    finally:
        made.pair.close()
        made.torch.free()


def test_should_let_go_of_the_counter_before_its_memory_goes_and_count_in_the_next_roles(
    gpu_pair: GpuPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from one_process import LAYER_COUNT, Side

    device, side = the_device(), gpu_pair.pair.prefiller
    graph = device.capture(lambda: [layer() for layer in gpu_pair.model.layers] and None)
    unregistered = functools.partial(device.stand_in.standInCallCount, b"cuMemHostUnregister")
    close, before, at_close = side.endpoint.exchange.close, unregistered(), []
    monkeypatch.setattr(side.endpoint.exchange, "close", lambda: (at_close.append(unregistered() - before), close()))
    side.endpoint.teardown()
    assert at_close == [1]
    graph()
    device.finish()
    again = gpu_pair.pair.prefiller = Side.over(side.pool, "prefill", gpu_pair.pair._arguments, side.shape, side.rank)
    counter = again.endpoint.steps._counter
    start = counter.begin_step()
    graph()
    device.finish()
    word = ctypes.c_uint64.from_address(again.endpoint.exchange._messenger.opened.layer_counter_address)
    assert word.value == start + 2 * LAYER_COUNT
    counter.end_step()


def test_should_close_the_messenger_also_where_the_gpu_does_not_let_go(
    gpu_pair: GpuPair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from one_process import Side

    side, closed = gpu_pair.pair.prefiller, []
    close = side.endpoint.exchange.close
    monkeypatch.setattr(side.endpoint.exchange, "close", lambda: closed.append(close()))
    the_device().stand_in.standInFail(b"cuCtxSynchronize", 1, OUT_OF_MEMORY)
    side.endpoint.teardown()
    assert len(closed) == 1
    assert "the GPU may still write to the layer counter: start this server again" in caplog.text
    gpu_pair.pair.prefiller = Side.over(side.pool, "prefill", gpu_pair.pair._arguments, side.shape, side.rank)


def test_should_leave_chunks_to_the_end_of_their_pass_where_the_counter_cannot_be_mapped(
    gpu_pair: GpuPair, caplog: pytest.LogCaptureFixture
) -> None:
    from one_process import Side

    side = gpu_pair.pair.prefiller
    side.endpoint.teardown()
    the_device().stand_in.standInFail(b"cuMemHostRegister_v2", 1, OUT_OF_MEMORY)
    again = gpu_pair.pair.prefiller = Side.over(side.pool, "prefill", gpu_pair.pair._arguments, side.shape, side.rank)
    assert again.endpoint.steps is None
    assert "chunks leave after their forward pass: the messenger's counter is not mapped for the GPU" in caplog.text
    move_pages(gpu_pair)


def test_should_count_what_graphs_repeat_of_a_pass_that_is_reported(gpu_pair: GpuPair) -> None:
    from one_process import LAYER_COUNT

    endpoint, device = gpu_pair.pair.prefiller.endpoint, the_device()
    assert endpoint.steps is not None
    assert endpoint.steps.first_pass is not None
    counter = endpoint.steps._counter
    word = ctypes.c_uint64.from_address(endpoint.exchange._messenger.opened.layer_counter_address)
    parts = [gpu_pair.model.layers[:2], gpu_pair.model.layers[2:]]
    graphs = [device.capture(lambda part=part: [layer() for layer in part] and None) for part in parts]

    def launch() -> None:
        """As where attention runs between graphs."""
        for graph in graphs:
            graph()
        device.finish()

    start = word.value
    launch()
    assert word.value == start, "a pass that is not told"
    assert counter.begin_step() == start
    launch()
    assert word.value == start + 2 * LAYER_COUNT, "K and V of each layer"
    assert counter.end_step() == start + 2 * LAYER_COUNT + 1
    device.finish()
    assert word.value == start + 2 * LAYER_COUNT + 1


def test_should_count_in_graphs_that_were_captured_before_there_was_a_messenger(loaded: Any, model: Any) -> None:
    from one_process import LAYER_COUNT

    from kv_connector.memory.layer_counter import LayerCounter

    device, word = the_device(), ctypes.c_uint64(40)
    launch = device.capture(lambda: [layer() for layer in model.layers] and None)
    launch()  # warm-up
    device.finish()
    assert word.value == 40
    names = loaded.graph_layers.names
    counter = LayerCounter(ctypes.addressof(word), names, loaded.aim(ctypes.addressof(word), names))
    counter.begin_step()
    launch()
    device.finish()
    assert word.value == 40 + 2 * LAYER_COUNT
    counter.end_step()
    loaded.let_go()
    word.value = 0
    launch()
    device.finish()
    assert word.value == 0, "the messenger has gone"


def test_should_count_a_layer_when_all_of_it_is_queued(loaded: Any, model: Any) -> None:
    """Kernels of a decoder layer behind its attention may be those that write its KV."""
    from kv_connector.memory.layer_counter import LayerCounter
    from kv_connector.sglang import layerwise

    device, word, names = the_device(), ctypes.c_uint64(), loaded.graph_layers.names
    seen: list[int] = []
    counter = LayerCounter(ctypes.addressof(word), names, loaded.aim(ctypes.addressof(word), names))
    layerwise.HOOKS.count_into(counter, names)
    for layer in model.layers:
        layer.kernels = lambda: device.queue(lambda: seen.append(word.value))
    counter.begin_step()
    for layer in model.layers:
        layer()
    counter.end_step()
    device.finish()
    assert seen == [0, 2, 4, 6]


def test_should_queue_begin_and_end_of_a_pass_where_sglang_queues_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    from kv_connector.sglang import hooks
    from kv_connector.sglang.exchange import PlannedChunk
    from kv_connector.sglang.layerwise import LayerwiseSteps

    order: list[str] = []

    @contextlib.contextmanager
    def stream(of: str) -> Iterator[None]:
        order.append(f"into {of}")
        yield
        order.append(f"out of {of}")

    def position(name: str) -> int:
        order.append(name)
        return 9

    counter = SimpleNamespace(
        begin_step=lambda: position("begin"), end_step=lambda: position("end"), steps_out_of_order=0
    )
    exchange = SimpleNamespace(step=lambda *_: True, step_ended=lambda *_: None)
    counted = SimpleNamespace(is_right=True)
    steps = LayerwiseSteps(exchange, counter, SimpleNamespace(), counted)  # type: ignore[arg-type]
    monkeypatch.setattr(hooks, "_plan", lambda *_: [PlannedChunk(CHUNK, lambda: None)])
    scheduler = SimpleNamespace(
        disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=SimpleNamespace(steps=steps)),
        enable_overlap=True,
        device_module=SimpleNamespace(stream=stream),
        forward_stream="forward",
    )
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: False))
    hooks.run_batch(lambda *_: order.append("pass"), scheduler, batch)
    assert order == ["into forward", "begin", "out of forward", "pass", "into forward", "end", "out of forward"]
    order.clear()
    scheduler.enable_overlap = False  # it computes where it schedules
    hooks.run_batch(lambda *_: order.append("pass"), scheduler, batch)
    assert order == ["begin", "pass", "end"]


def test_should_send_nothing_of_a_pass_whose_end_the_driver_refuses(
    gpu_pair: GpuPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kv_connector.sglang.exchange import PlannedChunk

    steps = gpu_pair.pair.prefiller.endpoint.steps
    calls: list[str] = []
    exchange = SimpleNamespace(
        step=lambda *_: True, step_ended=lambda *_: calls.append("ended"), step_failed=lambda *_: calls.append("failed")
    )
    monkeypatch.setattr(steps, "_exchange", exchange)

    def forward() -> str:
        the_device().stand_in.standInFail(b"cuLaunchKernel", 1, OUT_OF_MEMORY)
        return "result"

    assert steps.run(lambda: [PlannedChunk(CHUNK, lambda: None)], forward) == "result"
    assert calls == ["failed"]


def test_should_leave_chunks_to_the_end_of_their_pass_where_the_device_does_not_count(
    gpu: Any, model: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from one_process import Shape, publish_arguments

    publish_arguments(tmp_path, 1)
    the_device().stand_in.standInFail(b"cuModuleLoadData", 1, OUT_OF_MEMORY)
    load(model, Shape().pool())
    assert gpu.graph_layers is None
    assert "layers cannot be counted on this GPU" in caplog.text
    assert gpu.aim(8, ["layer.0.k"]) is None


def test_should_not_take_a_graphs_count_for_other_layers(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    word = ctypes.c_uint64()
    names = list(loaded.graph_layers.names)
    assert loaded.aim(ctypes.addressof(word), ["index.0", *names]) is None
    assert loaded.aim(ctypes.addressof(word), names[:-1]) is None
    assert "graphs count the 8 KV buffers" in caplog.text
    assert loaded.aim(ctypes.addressof(word), [*names, "draft.0.k", "draft.0.v"]) is not None


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        ("--enable-pdmux", {"enable_pdmux": True}),
        ("--enable-two-batch-overlap", {"enable_two_batch_overlap": True}),
    ],
)
def test_should_refuse_on_a_gpu_what_parts_a_pass(
    gpu: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, option: str, refused: dict[str, bool]
) -> None:
    from one_process import publish_arguments
    from sglang.srt import runtime_context

    from kv_connector.exceptions import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    assert gpu is not None
    publish_arguments(tmp_path, 1)
    features = SimpleNamespace(**{"enable_two_batch_overlap": False} | refused)
    monkeypatch.setattr(runtime_context, "get_exec", lambda: SimpleNamespace(features=features, overlap=features))
    if "enable_pdmux" in refused:
        monkeypatch.setattr(runtime_context, "get_disagg", lambda: SimpleNamespace(**refused))
    rank = SimpleNamespace(system_dp_rank=0, pp_rank=0, engine_rank=0, state_types=[])
    with pytest.raises(OptionError, match=f"{option} is True, expected False"):
        refuse_unsupported(rank, "prefill")


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_should_serve_an_engine_that_gives_its_memory_back(
    gpu: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    from one_process import publish_arguments
    from sglang.srt import runtime_context

    from kv_connector.sglang.refusals import refuse_unsupported

    assert gpu is not None
    publish_arguments(tmp_path, 1)
    features = SimpleNamespace(enable_memory_saver=True, enable_two_batch_overlap=False)
    monkeypatch.setattr(runtime_context, "get_exec", lambda: SimpleNamespace(features=features, overlap=features))
    refuse_unsupported(SimpleNamespace(system_dp_rank=0, pp_rank=0, engine_rank=0, state_types=[]), mode)


@pytest.mark.parametrize(
    ("device", "gpu_option", "sentence"),
    [
        ("cuda", "off", "--device is 'cuda', expected 'cpu'.*; set gpu to 'unproven' in KV_MESSENGER_OPTIONS"),
        ("xpu", "unproven", "--device is 'xpu', expected 'cpu'"),
    ],
)
def test_should_refuse_a_device_that_is_not_served(device: str, gpu_option: str, sentence: str) -> None:
    from kv_connector.exceptions import OptionError
    from kv_connector.sglang.refusals import refuse_device

    with pytest.raises(OptionError, match=sentence):
        refuse_device(device, gpu_option)
