"""What stands in for FlashInfer's package, which is not there: its kernels read nothing.

vLLM's backend for it is its own: the layout of KV, the metadata, and the operator that writes KV (extensions.py).
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from uncomputed.extensions import nothing

NAME = "FLASHINFER"
"""vLLM's of the backend."""
KERNELS = ("fast_decode_plan", "trtllm_batch_decode_with_kv_cache", "trtllm_batch_context_with_kv_cache")
VALUES_FIRST = "UNCOMPUTED_VALUES_FIRST"
"""A variable: pages get a token's value before its key, by a function that is not vLLM's."""


class Planned:
    """Attention of a batch, with what vLLM reads of its plan again."""

    def __init__(self, *given: Any, use_cuda_graph: bool = False, **named: Any) -> None:
        self.is_cuda_graph_enabled = use_cuda_graph

    def plan(
        self,
        *given: Any,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        causal: bool = False,
        **named: Any,
    ) -> None:
        self._window_left, self._logits_soft_cap = window_left, logits_soft_cap or 0.0
        self._sm_scale, self._causal = sm_scale, causal

    run = nothing


def get_seq_lens(page_offsets: torch.Tensor, last_page_tokens: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """Tokens of each sequence, from where its pages begin in a list of all of them, and those in its last page."""
    return torch.clamp(page_offsets.diff() - 1, min=0) * page_tokens + last_page_tokens


def get_device_sm_count(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def get_trtllm_gen_multi_ctas_kv_counter_bytes(*given: Any, **named: Any) -> int:
    """Of what its kernels count in."""
    return 1024


HERE: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (get_seq_lens, get_device_sm_count, get_trtllm_gen_multi_ctas_kv_counter_bytes)
}


class Package(types.ModuleType):
    """A module of FlashInfer's; what is not here is refused, by name, where it is called."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in HERE:
            return HERE[name]
        if name in KERNELS or name.startswith("xqa"):
            return nothing
        if name.endswith("Wrapper"):
            return type(name, (Planned,), {})
        return _refused(f"{self.__name__}.{name}")


def _refused(name: str) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        raise NotImplementedError(f"a CUDA that computes nothing has no stand-in for {name}")

    return called


def stand_in() -> None:
    """After vLLM is imported, and before an engine chooses its backend. As on a machine with FlashInfer's kernels."""
    import vllm.utils.flashinfer as found
    import vllm.v1.worker.gpu_worker as worker

    for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils", "flashinfer_cubin"):
        sys.modules[name] = Package(name)
    for each in vars(found).values():
        if callable(forget := getattr(each, "cache_clear", None)):
            forget()
    worker.kernel_warmup = nothing
    if VALUES_FIRST in os.environ:
        _write_values_first()


def _write_values_first() -> None:
    from vllm.v1.attention.backends.flashinfer import FlashInferImpl

    def update(impl: Any, layer: Any, key: Any, value: Any, *given: Any) -> None:
        pages, slots = given
        first, second = pages.transpose(1, 2).chunk(2, dim=-1)
        scales = layer._k_scale, layer._v_scale
        torch.ops._C_cache_ops.reshape_and_cache_flash(key, value, second, first, slots, impl.cache_dtype, *scales)

    FlashInferImpl.do_kv_cache_update = update
