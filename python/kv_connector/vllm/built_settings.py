"""What vLLM made of its options and of the model's configuration, read from the layers of a worker's model.

Used by the worker's main thread, once, after the model was built. What cannot be reached is left out: names of built
layers are compared only if both sides have them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from kv_connector.naming import built_rope
from kv_connector.naming.model_settings import Settings, text_of

_ROPES = "vllm.model_executor.layers.rotary_embedding"
_EXPERTS = ("top_k", "renormalize", "scoring_func", "num_expert_group", "topk_group")
"""How a layer chooses among its experts. Their number is left to the configuration, since spare copies count in the
layers, and so are factors, which a layer or its kernel may apply."""
_SCALES = ("_k_scale_float", "_v_scale_float")


def of_layers(vllm_config: Any, stage: tuple[int, int]) -> Settings:
    """The settings of all layers that this worker has built; ``stage`` is its pipeline stage and how many there are."""
    layers: Mapping[str, Any] = vllm_config.compilation_config.static_forward_context
    place = "built." if stage[1] == 1 else f"built.stage{stage[0]}of{stage[1]}."
    settings = _of_ropes(vllm_config)
    for name in _EXPERTS:
        found = {text_of(getattr(experts, name)) for experts in _experts_in(layers.values()) if hasattr(experts, name)}
        if found - {"None"}:
            settings[f"{place}experts.{name}"] = text_of(sorted(found)) if len(found) > 1 else found.pop()
    scales = _scales(layers)
    if scales:
        settings[f"{place}kv_scales"] = scales
    return settings


def _of_ropes(vllm_config: Any) -> Settings:
    built = getattr(sys.modules.get(_ROPES), "_ROPE_DICT", None)
    found = built_rope.of_modules(built.values()) if built else {}
    model = vllm_config.model_config
    return {**built_rope.of_configuration(model.hf_text_config, model.max_model_len), **found}


def _experts_in(layers: Iterable[Any]) -> list[Any]:
    found = [(layer, getattr(layer, "routed_experts", None)) for layer in layers]
    return [part for parts in found for part in parts if hasattr(part, "top_k")]


def _scales(layers: Mapping[str, Any]) -> str:
    """The factors by which layers scale their K and V before they are stored, unless all of them are 1."""
    scales = [
        f"{name} {[f'{float(getattr(layers[name], scale)):.6g}' for scale in _SCALES]}"
        for name in sorted(layers)
        if all(isinstance(getattr(layers[name], scale, None), float) for scale in _SCALES)
    ]
    if not scales:
        return ""
    if all("['1', '1']" in each for each in scales):
        return "1"
    return f"{len(scales)} layers, digest {hashlib.sha256(repr(scales).encode()).hexdigest()[:12]}"
