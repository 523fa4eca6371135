"""SGLang's own pools of a model whose layers are attention or keep a state: pages, slots of state and requests
that hold both, on each side as its scheduler makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from one_process import HEAD_SIZE, LATENT_SIZE, LAYER_COUNT, ROPE_SIZE, Shape, Side
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.disaggregation.decode import HybridMambaDecodeReqToTokenPool
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool

ATTENTION_LAYERS = [1, 3]
STATE_LAYERS = [layer for layer in range(LAYER_COUNT) if layer not in ATTENTION_LAYERS]
LATENT_SIZES = {"kv_lora_rank": LATENT_SIZE, "qk_rope_head_dim": ROPE_SIZE}
PROMPT_TOKENS_MAX = 1024


@dataclass(frozen=True)
class HybridShape(Shape):
    """Mamba-2 beside attention; with ``state_size`` 0 short convolutions, which keep their inputs alone."""

    state_size: int = 8
    state_dtype: torch.dtype = field(default=torch.float32)
    request_count: int = 6

    def pool_of(self, mode: str, pp_rank: int) -> Any:
        assert pp_rank == 0
        return self.hybrid_pool(self._requests(mode), use_mla=self.latent, **LATENT_SIZES)

    def hybrid_pool(
        self,
        requests: Any,
        pool_class: Callable[..., Any] = HybridLinearKVPool,
        attention_layers: Sequence[int] = tuple(ATTENTION_LAYERS),
        **of_class: Any,
    ) -> Any:
        """The pages of layers with attention, beside the states that ``requests`` have; a scheduler holds both."""
        pool = pool_class(
            size=self.page_count * self.page_tokens,
            dtype=torch.bfloat16,
            page_size=self.page_tokens,
            head_num=self.heads_of(0).stop,
            head_dim=HEAD_SIZE,
            full_attention_layer_ids=list(attention_layers),
            device="cpu",
            mamba_pool=requests.mamba_pool,
            **of_class,
        )
        pool.requests = requests
        return pool

    def _requests(self, mode: str, layers: Sequence[int] = tuple(STATE_LAYERS)) -> Any:
        """The decoder's pool is a class of its own, and has another number of slots."""
        alike = {
            "max_context_len": PROMPT_TOKENS_MAX,
            "device": "cpu",
            "enable_memory_saver": False,
            "cache_params": self._cache_params(),
            "mamba_layer_ids": list(layers),
            "enable_mamba_extra_buffer": False,
            "speculative_num_draft_tokens": None,
            "enable_overlap_schedule": True,
        }
        if mode == "decode":
            return HybridMambaDecodeReqToTokenPool(size=self.request_count, pre_alloc_size=3, **alike)
        return HybridReqToTokenPool(
            size=self.request_count,
            mamba_size=2 * self.request_count,
            mamba_spec_state_size=self.request_count,
            **alike,
        )

    def _cache_params(self) -> Any:
        shape = Mamba2StateShape.create(
            tp_world_size=self.tp_size,
            intermediate_size=32,
            n_groups=self.tp_size,
            num_heads=4,
            head_dim=8,
            state_size=self.state_size,
            conv_kernel=4,
        )
        dtypes = Mamba2StateDType(conv=torch.bfloat16, temporal=self.state_dtype)
        return Mamba2CacheParams(shape=shape, layers=STATE_LAYERS, dtype=dtypes)


def states(side: Side) -> list[Any]:
    """Each state tensor of each layer, by slot."""
    cache = side.pool.mamba_pool.mamba_cache
    return [tensor[layer] for tensor in (*cache.conv, cache.temporal) if tensor.numel() for layer in range(len(tensor))]


def write_state(side: Side, slot: int, seed: int) -> None:
    """What a forward pass leaves there."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in states(side):
        tensor[slot] = torch.randn(tensor.shape[1:], generator=generator)


class Request:
    """A request's row and slot in a side's pools, taken and given back as SGLang's scheduler does."""

    def __init__(self, side: Side) -> None:
        self._pool = side.pool.requests
        self._holder = SimpleNamespace(kv=ReqKvInfo())
        (self.row,) = self._pool.alloc([self._holder])

    @property
    def slot(self) -> int:
        return int(self._holder.kv.mamba_pool_idx)

    def state_indices(self) -> list[Any]:
        """As both of SGLang's queues put it into what they give a backend."""
        mapping = self._pool.req_index_to_mamba_index_mapping
        return [[self._pool.translate_mamba_indices(mapping[self.row]).cpu().numpy()]]

    def keep_for_prefixes(self) -> int:
        """As the radix cache does behind a chunk: a copy of the state in a slot of the cache's own."""
        kept = self._pool.mamba_allocator.alloc(1)
        self._pool.mamba_pool.copy_from(self._holder.kv.mamba_pool_idx.unsqueeze(0), kept)
        return int(kept[0])

    def begin_with(self, kept: int) -> None:
        """As a request whose beginning the radix cache has."""
        self._pool.copy_mamba_state(torch.tensor([kept]), self._holder.kv.mamba_pool_idx.unsqueeze(0))

    def begin_empty(self) -> None:
        self._pool.mamba_pool.clear_slots(self._holder.kv.mamba_pool_idx.unsqueeze(0))

    def give_back(self) -> None:
        self._pool.free_mamba_cache(self._holder)
        self._pool.free(self._holder)


def taken_again(side: Side, slot: int) -> Request:
    """A new request that has this slot, which was given back: SGLang gives others away first."""
    request = Request(side)
    while request.slot != slot:
        request.give_back()
        request = Request(side)
    return request


def in_different_slots(here: Side, there: Side) -> tuple[Request, Request]:
    """A request on both sides, whose slots have different numbers."""
    first, other = Request(here), Request(there)
    if first.slot == other.slot:
        second = Request(here)
        first.give_back()
        first = second
    return first, other
