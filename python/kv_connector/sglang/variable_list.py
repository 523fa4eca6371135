"""SGLang's environment variables that decide which KV an engine computes, beside its arguments; peers compare them.

SGLang has hundreds of variables. Almost all choose kernels, sizes or logs, and many differ between a prefiller and a
decoder on purpose; so those that change numbers or layouts by design are listed here, and all others are harmless. One
that concerns a prefill alone is harmless too: a decoder computes none.
"""

from __future__ import annotations

from typing import Any

from kv_connector.naming.model_settings import Settings, text_of


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMPARED_VARIABLES = _names(
    """
    FLASHINFER_NVFP4_4OVER6 FLASHINFER_NVFP4_4OVER6_E4M3_USE_256 SGLANG_AITER_KV_CACHE_LAYOUT
    SGLANG_CPU_QUANTIZATION SGLANG_DISABLED_MODEL_ARCHS SGLANG_DSA_HIP_DISABLE_PRESHUFFLE
    SGLANG_EXTERNAL_MODEL_PACKAGE SGLANG_FLASHINFER_CUTEDSL_NVFP4_W4A16
    SGLANG_FLASHINFER_NVFP4_PER_TOKEN_ACTIVATION SGLANG_FORCE_MXFP8_BLOCK_CONVERT_DENSE SGLANG_FP4_IGNORED_LAYERS
    SGLANG_FP8_IGNORED_LAYERS SGLANG_HUMMING_INPUT_QUANT_CONFIG SGLANG_HUMMING_ONLINE_QUANT_CONFIG
    SGLANG_INT4_WEIGHT SGLANG_MINICPM_DENSE_AS_SPARSE SGLANG_MINICPM_FORCE_DENSE
    SGLANG_NVFP4_CKPT_FP8_GEMM_IN_ATTN SGLANG_QUANT_ALLOW_DOWNCASTING SGLANG_SIMULATE_ROUND_ROBIN_EXPERTS
    SGLANG_SIMULATE_UNIFORM_EXPERTS
    """
)


def of_variables(variables: Any) -> Settings:
    """Those that do not have their default, by name; ``variables`` is SGLang's object of all of them."""
    fields = {name: getattr(variables, name, None) for name in COMPARED_VARIABLES}
    values = {name: (field.get(), field.default) for name, field in fields.items() if field is not None}
    return {f"environment.{name}": text_of(value) for name, (value, default) in values.items() if value != default}
