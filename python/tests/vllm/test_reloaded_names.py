"""A model's loader that writes past vLLM's own reload is seen, whatever it does with its other tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.vllm.reloaded_names import names_lost, unfit_architecture

torch: Any = pytest.importorskip("torch", reason="torch comes with the engine")

Write = Callable[[Any, Any, Any], Any]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what vLLM imports


@pytest.fixture
def own() -> Any:
    """vLLM's own functions."""
    from vllm.model_executor.model_loader import reload, weight_utils
    from vllm.model_executor.model_loader.reload import layerwise

    return SimpleNamespace(
        begin=reload.initialize_layerwise_reload,
        record=reload.record_metadata_for_reloading,
        info_of=layerwise.get_layerwise_info,
        load=weight_utils.default_weight_loader,
    )


def by_its_loader(own: Any, parameter: Any, given: Any) -> None:
    getattr(parameter, "weight_loader", own.load)(parameter, given)


def by_a_copy(_own: Any, parameter: Any, given: Any) -> None:
    parameter.data.copy_(given)


def by_rows(_own: Any, parameter: Any, given: Any) -> None:
    parameter.data[: given.shape[0]].copy_(given)


def by_the_default(own: Any, parameter: Any, given: Any) -> None:
    own.load(parameter, given)


WRITES: dict[str, tuple[Write, bool]] = {
    "its loader": (by_its_loader, False),
    "a copy": (by_a_copy, True),
    "a copy of rows": (by_rows, True),
    "the default loader, called by itself": (by_the_default, True),
}
"""With whether the reload sees nothing of it."""


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(4, 3), requires_grad=False)
        self.second = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("table", torch.zeros(2))


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])
        self.plain = torch.nn.Parameter(torch.zeros(5), requires_grad=False)


def begun(own: Any) -> Model:
    model = Model()
    own.record(model)
    own.begin(model)
    return model


def names_of(model: Model) -> Iterator[str]:
    return (name for name, _ in model.named_parameters())


@pytest.mark.parametrize("chosen", list(itertools.product(WRITES, repeat=2)))
@pytest.mark.parametrize("plain", WRITES)
def test_should_name_each_tensor_that_the_reload_has_nothing_of(own: Any, chosen: tuple[str, str], plain: str) -> None:
    model = begun(own)
    ways = dict.fromkeys(names_of(model), "its loader") | {
        "layers.0.first": chosen[0],
        "layers.0.second": chosen[1],
        "plain": plain,
    }
    parameters = dict(model.named_parameters())
    for name, way in ways.items():
        WRITES[way][0](own, parameters[name], torch.ones(parameters[name].shape))
    lost = [name for name, way in ways.items() if WRITES[way][1]]
    assert names_lost(model, ways, own.info_of) == sorted(lost)


def test_should_name_nothing_of_a_loader_that_names_nothing_or_other_things(own: Any) -> None:
    model = begun(own)
    assert names_lost(model, None, own.info_of) == []
    others = ["lm_head.weight", "layers.0.table", "layers.7.first", "layers", "", "layers.0.first.more"]
    assert names_lost(model, others, own.info_of) == []


@pytest.mark.parametrize("architectures", [["GptOssForCausalLM"], ["Other", "GptOssForCausalLM"]])
def test_should_refuse_models_of_which_it_is_known_before(architectures: list[str]) -> None:
    assert "is a GptOssForCausalLM" in unfit_architecture(architectures)


@pytest.mark.parametrize("architectures", [None, [], ["LlamaForCausalLM"]])
def test_should_refuse_no_other_model(architectures: list[str] | None) -> None:
    assert unfit_architecture(architectures) == ""
