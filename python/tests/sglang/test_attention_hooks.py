"""Which layers are counted while a forward pass runs: SGLang's own attention modules, no messenger."""

from __future__ import annotations

import ctypes
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kv_connector.runtime.commands import Chunk

if TYPE_CHECKING:
    from kv_connector import LayerCounter
    from kv_connector.sglang.layerwise import AttentionHooks

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

CHUNK = Chunk("1", "1", "", 16, 0, 0, 16, [])
NAMES = ("layer.0.k", "layer.0.v", "layer.1.k", "layer.1.v")
LAYER_COUNT = 2


class Exchange:
    """Takes every plan."""

    def step(self, *_plan: object) -> bool:
        return True

    def step_ended(self, _step: int, _counter_end: int) -> None:
        """Nothing is sent."""


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The attention of each layer of a model; there is nothing to compute."""
    import torch
    from sglang.srt.layers.radix_attention import RadixAttention

    monkeypatch.setattr(RadixAttention, "forward", lambda *_tensors: None)
    return torch.nn.ModuleList([RadixAttention(8, 8, 1.0, 4, layer) for layer in range(LAYER_COUNT)])


@pytest.fixture
def word() -> ctypes.c_uint64:
    """The counter's memory, which lives as long as the test."""
    return ctypes.c_uint64()


@pytest.fixture
def counter(word: ctypes.c_uint64) -> LayerCounter:
    from kv_connector import LayerCounter

    return LayerCounter(ctypes.addressof(word), NAMES)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch, counter: LayerCounter) -> AttentionHooks:
    """Of a prefiller's process, with this backend chosen."""
    from sglang.srt import runtime_context

    from kv_connector.sglang import layerwise

    chosen = SimpleNamespace(disaggregation_transfer_backend="kv_messenger", disaggregation_mode="prefill")
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)
    monkeypatch.setattr(runtime_context, "get_device", lambda: SimpleNamespace(device="cpu"))
    monkeypatch.setattr(layerwise, "HOOKS", layerwise.AttentionHooks())
    layerwise.HOOKS.count_into(counter, NAMES)
    return layerwise.HOOKS


def model_runner(model: Any, *, is_draft_worker: bool, window: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(model=model, is_draft_worker=is_draft_worker, sliding_window_size=window)


def test_should_not_count_a_draft_models_layers_for_the_targets(
    hooks: AttentionHooks, counter: LayerCounter, attention: Any
) -> None:
    import torch
    from sglang.srt.layers.radix_attention import RadixAttention

    from kv_connector.sglang.layerwise import install_hooks

    draft = torch.nn.ModuleList([RadixAttention(8, 8, 1.0, 4, 0)])
    draft.start_layer = 7
    install_hooks(None, model_runner(draft, is_draft_worker=True, window=7))
    assert hooks.missing(NAMES) == list(NAMES)
    assert hooks.window_tokens == 0
    assert hooks.first_layer == 0
    attention.start_layer = 3  # of a later pipeline stage
    install_hooks(None, model_runner(attention, is_draft_worker=False, window=39))
    assert hooks.missing(NAMES) == []
    assert hooks.window_tokens == 39
    assert hooks.first_layer == 3

    counter.begin_step()
    draft[0]()
    assert counter.position == 0, "the draft's layer 0 is not the target's"
    for layer in attention:
        layer()
    counter.end_step()
    assert counter.position == len(NAMES)
    assert counter.steps_out_of_order == 0


def test_should_count_a_layer_with_two_attentions_once(
    hooks: AttentionHooks, counter: LayerCounter, attention: Any
) -> None:
    """As latent KV has on a GPU: one attention for prompts, one for new tokens. A pass runs one of them."""
    import torch
    from sglang.srt.layers.radix_attention import RadixAttention

    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.of_prompts, self.of_new_tokens = attention[number], RadixAttention(8, 8, 1.0, 4, number)

        def forward(self) -> None:
            self.of_prompts()

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(Layer(number) for number in range(LAYER_COUNT))
    hooks.install_at_layer_ends(model)
    counter.begin_step()
    for layer in model.layers:
        layer()
    counter.end_step()
    assert counter.position == len(NAMES)
    assert counter.steps_out_of_order == 0


@pytest.mark.parametrize("switches", [True, False])
def test_should_hook_a_decoder_that_may_become_a_prefiller(
    hooks: AttentionHooks, counter: LayerCounter, attention: Any, monkeypatch: pytest.MonkeyPatch, switches: bool
) -> None:
    from sglang.srt import runtime_context

    from kv_connector.sglang.layerwise import install_hooks

    decodes = {"disaggregation_mode": "decode", "enable_pd_role_switch": switches}
    chosen = SimpleNamespace(disaggregation_transfer_backend="kv_messenger", **decodes)
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)
    install_hooks(None, model_runner(attention, is_draft_worker=False))
    counter.begin_step()
    attention[0]()
    of_first_layer = 2 if switches else 0
    assert counter.position == of_first_layer
    hooks.stop_counting()
    attention[1]()
    assert counter.position == of_first_layer, "the counter's memory may be gone"


def test_should_count_an_indexers_keys_with_their_layer(
    hooks: AttentionHooks, word: ctypes.c_uint64, attention: Any
) -> None:
    from kv_connector import LayerCounter
    from kv_connector.sglang.layerwise import install_hooks

    names = ("layer.0", "index.0", "layer.1", "index.1")
    counter = LayerCounter(ctypes.addressof(word), names)
    install_hooks(None, model_runner(attention, is_draft_worker=False))
    hooks.count_into(counter, names)
    assert hooks.missing(names) == []
    counter.begin_step()
    attention[0]()
    assert counter.position == 2
    attention[1]()
    counter.end_step()
    assert counter.position == len(names)
    assert counter.steps_out_of_order == 0


def test_should_say_once_that_a_models_layers_do_not_finish_in_their_order(
    hooks: AttentionHooks, counter: LayerCounter, attention: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from kv_connector.sglang.exchange import PlannedChunk
    from kv_connector.sglang.layerwise import LayerwiseSteps, install_hooks
    from kv_connector.sglang.twins import Twins

    install_hooks(None, model_runner(attention, is_draft_worker=False))
    assert hooks.missing(NAMES) == []
    steps = LayerwiseSteps(Exchange(), counter, Twins(16, 1))  # type: ignore[arg-type]
    chunk = PlannedChunk(CHUNK, lambda: None)

    def warnings_of_a_pass(*layers: int) -> int:
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="sglang.srt.kv_messenger"):
            steps.run(lambda: [chunk], lambda: [attention[layer]() for layer in layers])
        return sum("do not finish in their order" in record.getMessage() for record in caplog.records)

    assert warnings_of_a_pass(0, 1) == 0
    assert counter.position == len(NAMES)
    assert warnings_of_a_pass(0, 0, 1) == 1, "a model that attends twice in layer 0"
    assert counter.position == len(NAMES) + 2, "the first layer alone leaves early"
    assert warnings_of_a_pass(0, 0, 1) == 0, "said once"
    assert counter.steps_out_of_order == 2
