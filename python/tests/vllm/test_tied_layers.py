"""A head that is tied to the embedding multiplies by the weights that were loaded last."""

from __future__ import annotations

from typing import Any

import pytest

from kv_connector.vllm.tied_layers import prepare_tied_layers

ROWS, COLUMNS = 64, 128


class Method:
    """In place of how vLLM prepares a layer."""

    def __init__(self) -> None:
        self.prepared: list[object] = []

    def process_weights_after_loading(self, layer: object) -> None:
        self.prepared.append(layer)


class Kept(Method):
    """The method that is asked for, which keeps what it prepares."""


class Layer:
    def __init__(self, method: object, *parameters: object) -> None:
        self.quant_method = method
        self._parameters = parameters

    def parameters(self, recurse: bool) -> tuple[object, ...]:
        assert not recurse
        return self._parameters


class Model:
    def __init__(self, *layers: Layer) -> None:
        self._layers = layers

    def modules(self) -> tuple[Layer, ...]:
        return self._layers


def test_should_prepare_the_later_of_two_layers_with_one_parameter() -> None:
    method, shared = Kept(), object()
    embedding, other, head = Layer(method, shared), Layer(method, object()), Layer(method, shared)
    prepare_tied_layers(Model(embedding, other, head), Kept)
    assert method.prepared == [head]


def test_should_leave_layers_of_another_method_as_they_are() -> None:
    method, shared = Method(), object()
    prepare_tied_layers(Model(Layer(Kept(), shared), Layer(method, shared), Layer(None, shared)), Kept)
    assert method.prepared == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports
def test_should_multiply_by_the_loaded_weights_after_vllms_own_reload() -> None:
    torch = pytest.importorskip("torch", reason="torch comes with the engine")
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.model_executor.model_loader import reload

    model = torch.nn.ModuleDict({"embedding": torch.nn.Module(), "head": torch.nn.Module()})
    for layer in model.values():
        layer.quant_method = UnquantizedEmbeddingMethod()
    embedding, head = model.values()
    generator = torch.Generator().manual_seed(7)
    before, loaded = (torch.randn(ROWS, COLUMNS, generator=generator) for _ in range(2))
    embedding.weight = head.weight = torch.nn.Parameter(before.clone(), requires_grad=False)
    reload.layerwise.record_metadata_for_reloading(model)
    for layer in (embedding, head):
        layer.quant_method.process_weights_after_loading(layer)
    given = torch.randn(3, COLUMNS, generator=generator)

    def assert_multiplies_by(weights: Any) -> None:
        torch.testing.assert_close(head.quant_method.apply(head, given), given @ weights.t(), rtol=1e-4, atol=1e-4)

    assert_multiplies_by(before)
    reload.initialize_layerwise_reload(model)
    embedding.weight.weight_loader(embedding.weight, loaded)
    reload.finalize_layerwise_reload(model, None)
    prepare_tied_layers(model, UnquantizedEmbeddingMethod)
    assert torch.equal(head.weight, loaded)
    assert_multiplies_by(loaded)
