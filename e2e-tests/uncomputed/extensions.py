"""What stands in for vLLM's compiled operators and Triton's kernels: those that write KV write rows, others nothing.

What an operator leaves is whatever was there before. One that is not here is refused, by name, where it is called.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from uncomputed.rows import Rows
from uncomputed.whole_numbers import OnHost

EXTENSIONS = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "_moe_C")
FLASH_ATTENTION = ("_vllm_fa2_C", "_vllm_fa3_C")
SILENT = ("gelu_tanh_and_mul", "merge_attn_states", "static_scaled_fp8_quant", "vocab_parallel_embedding")
"""Operators of vLLM's own that write no KV, beside those that gpu_check has in torch."""


class Operators:
    """A namespace of torch.ops."""

    def __init__(self, name: str, known: dict[str, Callable[..., Any]]) -> None:
        self._name, self.known = name, known

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self.known:
            raise NotImplementedError(f"a CUDA that computes nothing has no stand-in for {self._name}.{name}")
        return self.known[name]


def stand_in(rows: Rows) -> None:
    """Before vLLM is imported; all of it but the platform, which has vLLM imported."""
    _modules()
    _kv_writers(rows)
    _flash_attention()
    _kernels()


def _modules() -> None:
    from gpu_check.vllm_on_torch import operators

    if is_packed():
        importlib.import_module(f"vllm.{EXTENSIONS[0]}")  # registers its operators, as on a GPU
    else:
        for name in EXTENSIONS:
            sys.modules[f"vllm.{name}"] = types.ModuleType(name)
        for name in FLASH_ATTENTION:
            sys.modules[f"vllm.vllm_flash_attn.{name}"] = types.ModuleType(name)
        sys.modules["vllm._C_stable_libtorch"].registered = operators.register()  # type: ignore[attr-defined]
    for name in SILENT:
        setattr(torch.ops._C, name, Silent())


def is_packed() -> bool:
    """Whether it is the vLLM of the file for a GPU, which has modules of its own in these places."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / f"{EXTENSIONS[0]}.py").exists()


def _kv_writers(rows: Rows) -> None:
    def latent(*given: Any) -> None:
        _, _, cache, _, _, scale, *_ = given
        rows.layer(cache.unsqueeze(2), None, scale)

    known = {"reshape_and_cache_flash": _heads(rows), "concat_and_cache_mla": latent}
    known["gather_and_maybe_dequant_cache"] = nothing  # for attention over chunks of a prompt before
    _name("_C_cache_ops", known)


def stand_in_for_triton_attention(rows: Rows) -> None:
    """Its kernel that writes KV is Triton's."""
    import vllm.v1.attention.backends.triton_attn as backend

    backend.triton_reshape_and_cache_flash = _heads(rows)


def _heads(rows: Rows) -> Callable[..., None]:
    def update(*given: Any) -> None:
        _, _, keys, values, _, _, scale, *_ = given
        rows.layer(keys, values, scale)

    return update


def _flash_attention() -> None:
    def scheduled(batch: int, *given: Any) -> torch.Tensor:
        return torch.zeros(4 * batch + 1, dtype=torch.int32, device="cuda")

    def attended(query: torch.Tensor, keys: Any, values: torch.Tensor, *given: Any) -> tuple[Any, ...]:
        """FlashAttention 3 has `out` as the fourth behind the values."""
        out = given[3] if given[3] is not None else query.new_empty(*query.shape[:-1], values.shape[-1])
        return out, query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32), None, None

    def attended_before(query: torch.Tensor, keys: Any, values: torch.Tensor, *given: Any) -> tuple[Any, ...]:
        """FlashAttention 2 has it as the first."""
        out = given[0] if given[0] is not None else query.new_empty(*query.shape[:-1], values.shape[-1])
        return out, query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)

    _name("_vllm_fa3_C", {"fwd": attended, "get_scheduler_metadata": scheduled})
    _name("_vllm_fa2_C", {"varlen_fwd": attended_before})


def stand_in_for_experts() -> None:
    """Which experts a token has, and where its rows are. vLLM describes operators that it finds when imported.

    Which experts a rank has is computed, by the host: loads ask.
    """

    def grouped(scores: torch.Tensor, _groups: int, _best_groups: int, count: int, *given: Any) -> tuple[Any, ...]:
        return scores.new_empty(len(scores), count), scores.new_empty(len(scores), count, dtype=torch.int32)

    silent = ("moe_align_block_size", "moe_sum", "topk_sigmoid", "topk_softmax")
    _name("_moe_C", {"grouped_topk": grouped, **dict.fromkeys(silent, nothing)})
    import vllm.model_executor.layers.fused_moe.expert_map_manager as maps

    determine: Callable[..., Any] = maps.determine_expert_map

    def determined(*given: Any, **named: Any) -> Any:
        with OnHost():
            return determine(*given, **named)

    maps.determine_expert_map = determined


def _name(namespace: str, known: dict[str, Callable[..., Any]]) -> None:
    setattr(torch.ops, namespace, Operators(namespace, known))


def _kernels() -> None:
    from triton.runtime.jit import JITFunction

    JITFunction.run = lambda function, *given, **named: None


class Silent:
    """An operator that leaves what was there. Passes over a compiled graph name it by its overload."""

    def __init__(self) -> None:
        self.default = nothing

    def __call__(self, *given: Any, **named: Any) -> None:
        pass


def nothing(*given: Any, **named: Any) -> None:
    """What a kernel leaves behind where nothing is computed."""
