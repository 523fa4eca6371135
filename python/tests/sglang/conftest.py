from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpu_pair import GpuPair
    from one_process import Pair
    from sharded import ShardedPair


@pytest.fixture(scope="session")
def sglang_plugins() -> None:
    """SGLang's plugins are loaded as by its launcher; needs SGLang and its kernels' stand-in."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("SGLANG_HOST_IP", "127.0.0.1")
    pytest.importorskip("sglang.srt", reason="SGLang is not installed")
    with warnings.catch_warnings(action="ignore"):
        from sglang.srt.plugins.hook_registry import HookRegistry

        import kv_connector.sglang

        kv_connector.sglang.register()
        HookRegistry.apply_hooks()


@pytest.fixture(scope="session")
def lasting_pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests that need no other: it starts a JVM."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def open_ranks(
    sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Mapping[str, int], Mapping[str, int]], ShardedPair]]:
    """Opens engines of several ranks for a module's tests; given is what differs in the two sides' ``Shape``."""
    assert sglang_plugins is None
    with contextlib.ExitStack() as closing:

        def opened(prefiller: Mapping[str, int], decoder: Mapping[str, int]) -> ShardedPair:
            with warnings.catch_warnings(action="ignore"):
                from one_process import Shape
                from sharded import ShardedPair

                one = ShardedPair(tmp_path_factory.mktemp("model"), Shape(**prefiller), Shape(**decoder))
            closing.callback(one.close)
            return one

        yield opened


@pytest.fixture
def pair(lasting_pair: Pair) -> Pair:
    """With other content in each page of each side."""
    lasting_pair.prefiller.scribble(1)
    lasting_pair.decoder.scribble(2)
    return lasting_pair


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The process's part of a GPU, anew, in an engine that computes on it."""
    from gpu_pair import OnGpu, the_device
    from sglang.srt import runtime_context

    from kv_connector.memory.device_counter import DeviceCounting
    from kv_connector.sglang import device_side, endpoint, layerwise

    device = the_device()
    device.use()
    monkeypatch.setenv("KV_MESSENGER_OPTIONS", '{"gpu": "unproven", "transports": ["cuda"]}')
    bag = runtime_context.get_device
    monkeypatch.setattr(runtime_context, "get_device", lambda: OnGpu(bag()))
    made = device_side.DeviceSide()
    made.cuda_driver = lambda: device.driver
    made.device_counting = lambda: DeviceCounting.on(device.driver, device.stream)
    hooks = layerwise.AttentionHooks()
    for module in (device_side, endpoint):
        monkeypatch.setattr(module, "DEVICE", made)
    for module in (endpoint, layerwise):
        monkeypatch.setattr(module, "HOOKS", hooks)
    yield made
    device.finish()
    if made._word is not None:
        made._word.close()
    if made._allocation is not None:
        made._allocation.memories.close()
    assert device.stand_in.standInHeld() == 0


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Decoder layers, each with SGLang's attention; there is nothing to compute."""
    import torch
    from one_process import LAYER_COUNT
    from sglang.srt.layers.radix_attention import RadixAttention

    class Layer(torch.nn.Module):
        def __init__(self, index: int) -> None:
            super().__init__()
            self.attn = RadixAttention(8, 8, 1.0, 4, index)
            self.kernels: Callable[[], object] = lambda: None

        def forward(self) -> None:
            self.attn()
            self.kernels()

    monkeypatch.setattr(RadixAttention, "forward", lambda *_tensors: None)
    made = torch.nn.Module()
    made.layers = torch.nn.ModuleList(Layer(index) for index in range(LAYER_COUNT))
    return made


@pytest.fixture
def loaded(gpu: Any, model: Any, tmp_path: Any) -> Any:
    """A prefiller's model and pool, before there is a messenger; the process's part of the GPU."""
    from gpu_pair import load
    from one_process import Shape, publish_arguments

    publish_arguments(tmp_path, 1)
    load(model, Shape().pool())
    return gpu


@pytest.fixture
def gpu_pair(gpu: Any, model: Any, tmp_path: Any) -> Iterator[GpuPair]:
    with warnings.catch_warnings(action="ignore"):
        from gpu_pair import GpuPair

        made = GpuPair(gpu, tmp_path, model)
    yield made
    made.pair.close()
    made.torch.free()
