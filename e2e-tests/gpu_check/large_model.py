"""Engines with a Llama of 8 billion made-up weights, two of which share a GPU, and times of their answers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_engine.pair import EngineProcess

from gpu_check.report import NotShown
from gpu_check.vllm_checks import ANSWER_LIMIT_SECONDS, options, packed, tokens
from gpu_check.vllm_on_torch.plan import VllmPlan

VOCABULARY = 128256
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
"""The shape of Llama 3.1 8B."""
TOKEN_BYTES = 128 << 10
"""A token's KV: 32 layers, K and V, 8 heads of 128 values of 2 bytes."""
BLOCK_TOKENS = 16
CONTEXT_TOKENS = 26624
CHUNK_TOKENS = 8192
KV_BYTES = 16 << 30
MEMORY_BYTES_MIN = 75 << 30
"""For two engines, each with 16 GB of weights and as much KV."""
LIMIT_SECONDS = 200
"""For a check: two engines make up their weights and capture their graphs first."""


def plan(name: str, folder: Path, transport: str, **more: Any) -> VllmPlan:
    """Of an engine; raises where it cannot run. `folder`: for the model's configuration."""
    packed()
    require_memory()
    (folder / "config.json").write_text(json.dumps(LLAMA_8B), "utf-8")
    return VllmPlan(
        name,
        str(folder),
        options=options(transport, model_id="made up"),
        chunk_tokens=CHUNK_TOKENS,
        kv_bytes=KV_BYTES,
        context_tokens=CONTEXT_TOKENS,
        made_up_weights=True,
        prefill_graphs=False,  # a chunk's would also run a prompt of 512 tokens as one of 8,192
        **more,
    )


def require_memory() -> None:
    import torch

    if (total := torch.cuda.mem_get_info()[1]) < MEMORY_BYTES_MIN:
        raise NotShown(f"the GPU has {total >> 30} GiB of memory, expected {MEMORY_BYTES_MIN >> 30} or more")


def prompt(length: int, seed: int) -> list[int]:
    return tokens(length, seed, VOCABULARY)


def answered(
    engine: EngineProcess, name: str, asked: Sequence[int], answer: int = 1, kv: Any = None
) -> tuple[float, dict[str, Any]]:
    """Milliseconds until the answer is over, and the answer."""
    began = time.perf_counter()
    ended = engine.add(name, asked, answer, kv).result(ANSWER_LIMIT_SECONDS)
    return ms_since(began), ended


def ms_since(began: float) -> float:
    return 1000 * (time.perf_counter() - began)
