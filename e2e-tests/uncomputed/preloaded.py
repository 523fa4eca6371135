"""What each engine has before it begins: stand-ins in their places, and vLLM imported over them.

Importing it once is most of what a start costs. So engines are forked from a process that has (`warm_launcher.py`).
vLLM asks a process of its own what a model's class can do, which imports all of vLLM again, and keeps the answer under
a name that all releases share: engines of two releases in turns would ask each time. A class that is imported is asked
itself.
"""

from __future__ import annotations

import ctypes
import importlib
import os

from uncomputed import cuda_platform, extensions
from uncomputed.rows import Rows

ROWS = "UNCOMPUTED_ROWS"
"""Where librows.so is."""
MODULES = (
    "vllm.engine.arg_utils",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_worker",
)
MODELS = {
    "vllm.model_executor.models.deepseek_v2": "DeepseekV2ForCausalLM",
    "vllm.model_executor.models.llama": "LlamaForCausalLM",
    "vllm.model_executor.models.qwen3_moe": "Qwen3MoeForCausalLM",
}
"""Classes that are asked themselves; they are imported with the rest."""
BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
"""vLLM reads it when it is imported, and again in each engine: where it was not set at first, graphs have no breaks."""


def install() -> None:
    os.environ[BREAKABLE] = "1"
    cuda_platform.stand_in_for_nvml()
    rows = Rows(ctypes.CDLL(os.environ[ROWS]))
    extensions.stand_in(rows)
    cuda_platform.stand_in()
    extensions.stand_in_for_triton_attention(rows)
    for name in MODULES:
        importlib.import_module(name)
    extensions.stand_in_for_experts()
    from vllm.model_executor.models.registry import ModelRegistry

    from uncomputed import engine

    for module, name in MODELS.items():
        ModelRegistry.register_model(name, getattr(importlib.import_module(module), name))
    engine.stand_in(rows)
    del os.environ[BREAKABLE]  # engines without it pass over the breaks


install()
