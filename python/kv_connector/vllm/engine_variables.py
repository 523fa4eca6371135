"""Which environment variables of vLLM change the KV that an engine computes, as settings that two sides compare. Pure.

Most variables choose among kernels for the same sums. These change what is summed, by design: weights or activations
that are quantised, sums in a shorter number format, experts that are chosen otherwise.
"""

from __future__ import annotations

import sys

from kv_connector.naming.model_settings import HarmlessBy, Settings, text_of

_MODULE = "vllm.envs"
BY_DESIGN = (
    "VLLM_B12X_MOE_FP4_FORCE_A16",
    "VLLM_CPU_INT4_W4A8",
    "VLLM_DEEPEPLL_NVFP4_DISPATCH",
    "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE",
    "VLLM_FLOAT32_MATMUL_PRECISION",
    "VLLM_HUMMING_INPUT_QUANT_CONFIG",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG",
    "VLLM_HUMMING_USE_F16_ACCUM",
    "VLLM_MARLIN_INPUT_DTYPE",
    "VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
    "VLLM_ROCM_FP8_MFMA_PAGE_ATTN",
    "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16",
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION",
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT",
    "VLLM_ROCM_USE_AITER_FP4BMM",
    "VLLM_ROCM_USE_AITER_FP8BMM",
    "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4",
    "VLLM_USE_DEEP_GEMM_E8M0",
    "VLLM_XPU_INC_WNA16_BACKEND",
)
HARMLESS: HarmlessBy = {
    "another kernel for the same formats": (
        "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER",
        "VLLM_MXFP4_EMULATION_DEQUANT_AT_LOAD",
        "VLLM_MXFP8_EMULATION_DEQUANT_AT_LOAD",
        "VLLM_ROCM_USE_AITER_FP4_ASM_GEMM",
        "VLLM_USE_FLASHINFER_MOE_INT4",
    ),
    "sizes of buffers": (
        "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE",
        "VLLM_ROCM_FP8_PADDING",
        "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION_MIN_SIZE_KB",
    ),
    "compared with the pages": ("VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT"),
    "how files are read or written": ("VLLM_COMPILE_CACHE_SAVE_FORMAT", "VLLM_TEST_FORCE_LOAD_FORMAT"),
}
"""Variables that have a number format or a layout in their name, and may differ."""


def of_process() -> Settings:
    """The variables as vLLM reads them in this process, set or not; one that this release does not have is left out."""
    variables = sys.modules.get(_MODULE)
    values = {name: getattr(variables, name, None) for name in BY_DESIGN}
    return {f"environment.{name}": text_of(value) for name, value in values.items() if value not in (None, "")}
