"""Names a model by its configuration; equal for all engines. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

_FINGERPRINT_FIELDS = (
    "architectures",
    "attention_bias",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "kv_lora_rank",
    "layer_types",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "v_head_dim",
    "vocab_size",
)

_BY_LAYER = "per_layer_config"
"""The field of transformers for values that differ between layers, such as Gemma 4's head counts and sizes."""


def fingerprint(model: str, hf_config: Any, packing: str, *, model_id: str = "") -> str:
    """Names a model so that two engines can determine whether their KV is interchangeable.

    Weights are not read: two trainings of one architecture with the same name differ in their ``weights_digest``.
    ``model_id`` replaces the name; the configuration and the packing are compared in any case.
    """
    described = {name: _field(hf_config, name) for name in _FINGERPRINT_FIELDS}
    by_layer = _as_written(hf_config).get(_BY_LAYER)
    if by_layer:
        described[_BY_LAYER] = by_layer
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode()).hexdigest()[:12]
    return f"{model_id or PurePath(model).name}@{digest}/{packing}"


def _field(hf_config: Any, name: str) -> object:
    """A field as it is in the configuration file: transformers raises on one that differs between layers."""
    try:
        return cast("object", getattr(hf_config, name, None))
    except RuntimeError:
        return _as_written(hf_config).get(name)


def _as_written(hf_config: Any) -> Mapping[str, object]:
    return cast("Mapping[str, object]", hf_config.to_dict()) if hasattr(hf_config, "to_dict") else {}
