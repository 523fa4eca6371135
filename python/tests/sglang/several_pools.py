"""SGLang's own pools in any combination, and what SGLang's two queues list of a prompt in each of them.

What must arrive is read from SGLang's description of the pools alone: addresses, lengths of items, and the indices.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hybrid import ATTENTION_LAYERS, LATENT_SIZES, STATE_LAYERS, HybridShape
from one_process import HEAD_COUNT, HEAD_SIZE, LATENT_SIZE, ROPE_SIZE, Side
from sglang.srt.configs.mamba_utils import (
    KimiLinearCacheParams,
    KimiLinearStateShape,
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.disaggregation.utils import get_dsa_tail_state_indices
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool, get_compress_state_ring_size
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    HybridLinearKVPool,
    MHATokenToKVPool,
    MHATokenToKVPoolMXFP8,
    MiniMaxSparseKVPool,
    MLATokenToKVPool,
)
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

PAGE_COUNT = 40
WINDOWED_PAGES = 30
REQUEST_ROWS = 7
WINDOW_TOKENS = 39
DRAFT_HEADS = 2
SCALED_HEAD_SIZE = 32
INDEX_TOKENS = 64
PENDING = "c128_state"
POOLED = 4
"""Tokens that an indexer pools into one key."""
FEW_HEADS = 2
"""Of KV, where several ranks then have the same ones."""
STATE_HEADS = 8
GATED_INPUTS = (32, 32, 64)
"""Queries, keys and values of a convolution over all ranks."""
KIMI_INPUTS = (STATE_HEADS * 8,) * 3
SPARSE_LAYERS = [1, 2, 3]
COMPRESSED_PAGE_TOKENS = 256
COMPRESSED_BY = [0, 4, 128, 4]
"""How many tokens each layer compresses into one."""


@dataclass(frozen=True)
class SeveralPools(HybridShape):
    """A model's pool by its name in ``MODELS``, beside that of a draft by its name in ``DRAFTS``."""

    model: str = "heads"
    draft: str = "none"
    page_count: int = PAGE_COUNT

    def pool_of(self, mode: str, pp_rank: int) -> Any:
        pool = {**MODELS, **MORE_MODELS}[self.model](self, mode, self.layers_of(pp_rank))
        draft = DRAFTS[self.draft](self)
        if draft is not None and pp_rank == self.pp_size - 1:
            pool.draft = draft
        return pool

    @property
    def size(self) -> int:
        return self.page_count * self.page_tokens

    def share(self, head_count: int) -> int:
        """The number of heads of one rank; ranks beyond their number have the same ones."""
        return max(1, head_count // self.tp_size)

    def requests(self, mode: str, layers: range) -> Any:
        return self._requests(mode, among(STATE_LAYERS, layers))

    def _cache_params(self) -> Any:
        made = STATE_SHAPES.get(self.model)
        if made is None:
            return super()._cache_params()
        params, shape = made(self.tp_size)
        dtypes = Mamba2StateDType(conv=torch.bfloat16, temporal=self.state_dtype)
        return params(shape=shape, layers=STATE_LAYERS, dtype=dtypes)


def among(layers: Sequence[int], of_stage: range) -> list[int]:
    return [layer for layer in layers if layer in of_stage]


def gated(tp_size: int) -> tuple[Any, Any]:
    """Gated delta nets: convolutions whose inputs SGLang names, and a recurrence by heads."""
    shape = Mamba2StateShape.create(
        tp_world_size=tp_size,
        intermediate_size=GATED_INPUTS[2],
        n_groups=4,
        num_heads=STATE_HEADS,
        head_dim=8,
        state_size=8,
        conv_kernel=4,
        conv_shard_groups=list(GATED_INPUTS),
    )
    return Mamba2CacheParams, shape


def kimi(tp_size: int) -> tuple[Any, Any]:
    """Kimi's linear attention, whose convolutions have the channels behind the tokens."""
    return KimiLinearCacheParams, KimiLinearStateShape.create(
        tp_world_size=tp_size, num_heads=STATE_HEADS, head_dim=KIMI_INPUTS[0] // STATE_HEADS
    )


def heads(shape: SeveralPools, layers: range, head_count: int = HEAD_COUNT, number: Any = torch.bfloat16) -> Any:
    held = {"start_layer": layers.start, "end_layer": layers.stop}
    own = shape.share(head_count)
    return MHATokenToKVPool(shape.size, shape.page_tokens, number, own, HEAD_SIZE, len(layers), "cpu", False, **held)


def latent(shape: SeveralPools, layers: range) -> Any:
    return MLATokenToKVPool(
        shape.size,
        shape.page_tokens,
        torch.bfloat16,
        LATENT_SIZE,
        ROPE_SIZE,
        len(layers),
        "cpu",
        enable_memory_saver=False,
        start_layer=layers.start,
        end_layer=layers.stop,
    )


def windows(shape: SeveralPools, _mode: str, layers: range, **of_pool: Any) -> Any:
    given = {"dtype": torch.bfloat16, "head_dim": HEAD_SIZE, **of_pool}
    return SWAKVPool(
        size=shape.size,
        size_swa=WINDOWED_PAGES * shape.page_tokens,
        page_size=shape.page_tokens,
        head_num=shape.share(HEAD_COUNT),
        swa_attention_layer_ids=among(STATE_LAYERS, layers),
        full_attention_layer_ids=among(ATTENTION_LAYERS, layers),
        device="cpu",
        **given,
    )


def scaled(shape: SeveralPools, _mode: str, layers: range) -> Any:
    return MHATokenToKVPoolMXFP8(
        shape.size,
        shape.page_tokens,
        torch.float8_e4m3fn,
        shape.share(HEAD_COUNT),
        SCALED_HEAD_SIZE,
        len(layers),
        "cpu",
        enable_memory_saver=False,
        start_layer=layers.start,
        end_layer=layers.stop,
    )


def scaled_windows(shape: SeveralPools, mode: str, layers: range) -> Any:
    numbers = {"dtype": torch.float8_e4m3fn, "head_dim": SCALED_HEAD_SIZE}
    return windows(shape, mode, layers, token_to_kv_pool_class=MHATokenToKVPoolMXFP8, **numbers)


def with_states(make: Callable[..., Any]) -> Callable[..., Any]:
    """The scheduler's table of requests has the states: SGLang describes them beside whatever pool there is."""

    def made(shape: SeveralPools, mode: str, layers: range) -> Any:
        pool = make(shape, mode, layers)
        pool.requests = shape.requests(mode, layers)
        return pool

    return made


def states(shape: SeveralPools, mode: str, layers: range, pool_class: Any = HybridLinearKVPool, **of_pool: Any) -> Any:
    held = {"attention_layers": among(ATTENTION_LAYERS, layers), "start_layer": layers.start}
    return shape.hybrid_pool(shape.requests(mode, layers), pool_class, **held, **of_pool)


def latent_states(shape: SeveralPools, mode: str, layers: range) -> Any:
    return states(shape, mode, layers, use_mla=True, **LATENT_SIZES)


def indexed(
    shape: SeveralPools, layers: range, numbers: Sequence[int] = (), without_keys: int = 1, **of_pool: Any
) -> Any:
    """One layer has no keys, since it reuses another's selection; ``numbers`` where layers do not follow each other."""
    numbers = numbers or layers
    return DSATokenToKVPool(
        shape.size,
        shape.page_tokens,
        LATENT_SIZE,
        torch.bfloat16,
        ROPE_SIZE,
        len(numbers),
        "cpu",
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=LATENT_SIZE + ROPE_SIZE,
        start_layer=layers.start,
        end_layer=layers.start + len(numbers),
        skip_topk_layers=[layer == without_keys for layer in numbers],
        **of_pool,
    )


def indexed_states(shape: SeveralPools, mode: str, layers: range, **of_index: Any) -> Any:
    """As SGLang's hybrid pool has it, whose inner pool is one with an indexer."""
    pool = latent_states(shape, mode, layers)
    own = among(ATTENTION_LAYERS, layers)
    pool.full_kv_pool = indexed(shape, range(len(own)), own, ATTENTION_LAYERS[-1], **of_index)
    pool.use_dsa = True
    return pool


def waiting(shape: SeveralPools, mode: str, layers: range) -> Any:
    """Only such a hybrid pool: for others SGLang 0.5.23 cannot list the tokens that wait."""
    return indexed_states(
        shape, mode, layers, index_kpool=POOLED, index_kpool_compress=True, max_running_requests=REQUEST_ROWS - 1
    )


def selected(shape: SeveralPools, mode: str, layers: range) -> Any:
    return states(
        shape,
        mode,
        layers,
        QSATokenToKVPool,
        qsa_index_kv_heads=1,
        qsa_index_head_dim=16,
        qsa_compress_ratio=POOLED,
        qsa_token_topk=2 * POOLED,
        num_request_slots=REQUEST_ROWS,
    )


def sparse(shape: SeveralPools, _mode: str, layers: range) -> Any:
    return MiniMaxSparseKVPool(
        shape.size,
        shape.page_tokens,
        torch.bfloat16,
        shape.share(HEAD_COUNT),
        HEAD_SIZE,
        16,
        [0],
        SPARSE_LAYERS,
        "cpu",
        disable_value_sparse_layer_ids=SPARSE_LAYERS,
        start_layer=layers.start,
        end_layer=layers.stop,
    )


def compressed(shape: SeveralPools, _mode: str, layers: range) -> Any:
    """DeepSeek-V4's, with the sizes that SGLang expects and derives."""
    windowed = WINDOWED_PAGES * shape.page_tokens
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=REQUEST_ROWS - 1,
        swa_size=windowed,
        c4_size=shape.size // 4,
        c128_size=shape.size // 128,
        c4_state_pool_size=windowed // shape.page_tokens * get_compress_state_ring_size(4),
        c128_state_pool_size=0,
        page_size=shape.page_tokens,
        swa_page_size=shape.page_tokens,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(layers),
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=COMPRESSED_BY,
        sliding_window=WINDOW_TOKENS,
        start_layer=layers.start,
        end_layer=layers.stop,
        full_size=shape.size,
    )


MODELS: Mapping[str, Callable[..., Any]] = {
    "heads": lambda shape, _, layers: heads(shape, layers),
    "latent": lambda shape, _, layers: latent(shape, layers),
    "windows": windows,
    "windows, states": with_states(windows),
    "states": states,
    "latent, states": latent_states,
    "index": lambda shape, _, layers: indexed(shape, layers),
    "index, states": indexed_states,
    "index, waiting, states": waiting,
    "selection, states": selected,
    "scales": scaled,
    "scales, windows": scaled_windows,
    "scales, windows, states": with_states(scaled_windows),
    "sparse": sparse,
    "compressed": compressed,
}
MORE_MODELS: Mapping[str, Callable[..., Any]] = {
    "heads of fp8": lambda shape, _, layers: heads(shape, layers, number=torch.float8_e4m3fn),
    "few heads": lambda shape, _, layers: heads(shape, layers, FEW_HEADS),
    "windows of few heads": lambda shape, mode, layers: windows(
        shape, mode, layers, swa_head_num=shape.share(FEW_HEADS), swa_head_dim=2 * HEAD_SIZE
    ),
    "gated": states,
    "latent, kimi": latent_states,
    "convolutions": states,
    "index, waiting, kimi": waiting,
    "selection, gated": selected,
}
"""Those that differ from the ones above in what ranks divide."""
STATE_SHAPES: Mapping[str, Callable[[int], tuple[Any, Any]]] = {
    "gated": gated,
    "latent, kimi": kimi,
    "index, waiting, kimi": kimi,
    "selection, gated": gated,
}
"""Where it is not Mamba-2, or short convolutions."""
LATENT = (
    *("latent", "latent, states", "index", "index, states", "index, waiting, states"),
    *("latent, kimi", "index, waiting, kimi", "compressed"),
)
PAGE_TOKENS_OF: Mapping[str, tuple[int, ...]] = {
    "index": (INDEX_TOKENS,),
    "index, states": (INDEX_TOKENS,),
    "index, waiting, states": (INDEX_TOKENS * POOLED,),
    "index, waiting, kimi": (INDEX_TOKENS * POOLED,),
    "selection, states": (16, 64),
    "compressed": (COMPRESSED_PAGE_TOKENS,),
}
"""Where SGLang's pool does not have any."""
DRAFTS: Mapping[str, Callable[..., Any]] = {
    "none": lambda _: None,
    "heads": lambda shape: heads(shape, range(1), DRAFT_HEADS),
    "latent": lambda shape: latent(shape, range(1)),
    "index": lambda shape: indexed(shape, range(1)),
}


def bytes_of(address: int, length: int) -> Any:
    return torch.frombuffer((ctypes.c_uint8 * length).from_address(address), dtype=torch.uint8)


def items_of(side: Side) -> dict[str, list[Any]]:
    """The buffers of each pool that SGLang describes, as rows of items."""
    args = side.endpoint.kv_args
    own = len(args.kv_data_ptrs) - args.num_draft_entries
    of_kv = list(zip(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens, strict=True))
    described = {"kv": of_kv[:own], "draft": of_kv[own:]}
    beside = zip(args.state_types, args.state_data_ptrs, args.state_data_lens, args.state_item_lens, strict=True)
    for kind, *of_kind in beside:
        described[kind.value] = list(zip(*of_kind, strict=True))
    return {
        kind: [bytes_of(address, length - length % item).view(-1, item) for address, length, item in buffers if length]
        for kind, buffers in described.items()
    }


class Request:
    """What SGLang's queue of one side lists of a prompt, with pages drawn at random."""

    def __init__(self, side: Side, tokens: int, seed: int) -> None:
        draw, self._side = random.Random(seed), side
        page = side.shape.page_tokens
        count = -(-tokens // page)
        first_in_window = max(0, tokens - WINDOW_TOKENS) // page
        self.pages = draw.sample(range(1, PAGE_COUNT), count)
        self.row = draw.randrange(1, REQUEST_ROWS)
        self._slot = draw.randrange(1, 6)
        in_window = draw.sample(range(1, WINDOWED_PAGES), count - first_in_window)
        kinds = [kind.value for kind in side.endpoint.kv_args.state_types]
        tail = get_dsa_tail_state_indices(side.pool, self.row, tokens) if "dsa_tail" in kinds else []
        pending = side.pool.request_state_transfer_indices(self.row, tokens) if PENDING in kinds else []
        of_kinds: Mapping[str, list[int]] = {
            "swa": in_window,
            "block_scale_swa": in_window,
            "mamba": [self._slot],
            "dsa_tail": tail,
            PENDING: list(pending),
            "qsa_pending": [self.row],
        }
        self.beside = {kind: of_kinds.get(kind, self.pages) for kind in kinds}

    @property
    def indices(self) -> list[list[int]]:
        """As the backend is given them."""
        return list(self.beside.values())

    def items(self) -> dict[str, list[int]]:
        """Which items of each pool are the prompt's."""
        unused = self.row if self._side.endpoint._mode == "decode" else 0
        rows = {k: given[:1] or [unused] if k in ("dsa_tail", PENDING) else given for k, given in self.beside.items()}
        return {"kv": self.pages, "draft": self.pages, **rows}


def scribble(side: Side, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for buffers in items_of(side).values():
        for buffer in buffers:
            buffer.random_(generator=generator)


def shapes(models: Mapping[str, Any] = MODELS) -> list[SeveralPools]:
    """Every model beside every draft; the page sizes take turns."""
    made = []
    for model in models:
        drafts = ["none", "heads", "latent", *(["index"] if model == "index" else [])]
        drafts = drafts[:1] if model == "compressed" else drafts  # it is not served with another
        for turn, draft in enumerate(drafts):
            sizes = PAGE_TOKENS_OF.get(model, (1, 16, 64))
            page_tokens = sizes[(len(made) + turn) % len(sizes)]
            is_latent = model in LATENT
            made.append(SeveralPools(model=model, draft=draft, latent=is_latent, page_tokens=page_tokens))
    return made


def assert_moved(before: dict[str, list[Any]], pair: Any, here: Request, there: Request) -> None:
    """Every item of the prompt is as on the prefiller, and every other one as it was."""
    sent, arrived = items_of(pair.prefiller), items_of(pair.decoder)
    sources, targets = here.items(), there.items()
    for kind, buffers in arrived.items():
        for number, (own, got, was) in enumerate(zip(sent[kind], buffers, before[kind], strict=True)):
            where = f"{kind}, buffer {number} of {len(buffers)}"
            assert torch.equal(own[sources[kind]], got[targets[kind]]), where
            others = [item for item in range(len(got)) if item not in (*targets[kind], 0)]
            assert torch.equal(was[others], got[others]), f"{where}: items of others"
