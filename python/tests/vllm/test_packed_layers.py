"""Models that vLLM cannot load again on a CPU take no weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kv_connector.vllm.packed_layers import not_loadable_again


class FusedMoEMethodBase:
    """vLLM's, by its name."""


class UnquantizedExperts(FusedMoEMethodBase):
    """One of its kind."""


def model_of(**layer: Any) -> Any:
    plain = SimpleNamespace(quant_method=object(), is_amx_bmm_enabled=False)
    return SimpleNamespace(modules=lambda: [plain, SimpleNamespace(), SimpleNamespace(**layer), plain])


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"is_amx_bmm_enabled": True}, "this server computes latent attention on a CPU"),
        ({"quant_method": UnquantizedExperts()}, "this server computes fused experts on a CPU"),
        ({"quant_method": FusedMoEMethodBase()}, "this server computes fused experts on a CPU"),
    ],
)
def test_should_name_what_vllm_does_not_bring_back(layer: dict[str, Any], words: str) -> None:
    assert not_loadable_again(model_of(**layer)).startswith(words)


def test_should_take_weights_of_other_models() -> None:
    assert not_loadable_again(model_of(quant_method=None, is_amx_bmm_enabled=False)) == ""
