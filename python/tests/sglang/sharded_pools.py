"""Engines of several ranks whose model has a second pool; what each rank must have is cut from one whole model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hybrid import HybridShape
from one_process import HEAD_COUNT, HEAD_SIZE, PAGE_TOKENS, Side, pages, until
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sharded import ShardedPair

from kv_connector.sglang.layerwise import HOOKS
from kv_connector.sglang.sglang_api import KVTransferError

WINDOW_TOKENS = 39
WINDOWED_PAGES = 30
FULL = [1, 2]
"""The layers with full attention: one on each of two stages."""
OTHERS = [0, 3]
INPUTS = [32, 32, 64]
"""Queries, keys and values of a convolution over all ranks."""
SLOTS = 6


@dataclass(frozen=True)
class Gated(HybridShape):
    """Gated delta nets: convolutions whose inputs SGLang names, and a recurrence by heads."""

    named_inputs: bool = True

    def pool_of(self, mode: str, pp_rank: int) -> Any:
        requests = self._requests(mode, [layer for layer in OTHERS if layer in self.layers_of(pp_rank)])
        full = [layer for layer in FULL if layer in self.layers_of(pp_rank)]
        return self.hybrid_pool(requests, attention_layers=full, start_layer=self.layers_of(pp_rank).start)

    def _cache_params(self) -> Any:
        shape = Mamba2StateShape.create(
            tp_world_size=self.tp_size,
            intermediate_size=INPUTS[2],
            n_groups=4,
            num_heads=8,
            head_dim=8,
            state_size=8,
            conv_kernel=4,
            conv_shard_groups=INPUTS if self.named_inputs else None,
        )
        dtypes = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
        return Mamba2CacheParams(shape=shape, layers=OTHERS, dtype=dtypes)


@dataclass(frozen=True)
class Windowed(HybridShape):
    """Layers with a sliding window beside those with full attention."""

    def pool_of(self, mode: str, pp_rank: int) -> Any:  # noqa: ARG002 - alike on both sides
        own = self.layers_of(pp_rank)
        return SWAKVPool(
            size=self.page_count * self.page_tokens,
            size_swa=WINDOWED_PAGES * self.page_tokens,
            page_size=self.page_tokens,
            dtype=torch.bfloat16,
            head_num=self.heads_of(0).stop,
            head_dim=HEAD_SIZE,
            swa_attention_layer_ids=[layer for layer in OTHERS if layer in own],
            full_attention_layer_ids=[layer for layer in FULL if layer in own],
            device="cpu",
        )


def opened(folder: Path, shape: str, prefill: tuple[int, int], decode: tuple[int, int]) -> ShardedPools:
    made: Any = {"gated": Gated, "mamba": lambda **of: Gated(named_inputs=False, **of), "windows": Windowed}[shape]
    read = ModelConfig.from_server_args

    def with_layers(*args: Any, **named: Any) -> Any:
        model = read(*args, **named)
        if shape == "windows":
            model.full_attention_layer_ids, model.swa_attention_layer_ids = FULL, OTHERS
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HOOKS, "window_tokens", WINDOW_TOKENS)
        patch.setattr(ModelConfig, "from_server_args", with_layers)
        sizes = [{"tp_size": tp_size, "pp_size": pp_size} for tp_size, pp_size in (prefill, decode)]
        return ShardedPools(folder, made(**sizes[0]), made(**sizes[1]))


def parts_of(side: Side) -> dict[str, Any]:
    """What a rank holds, by layer; each with the axis that ranks divide, and what lies along it."""
    pool = side.pool
    parts: dict[str, Any] = {}
    own = side.shape.layers_of(side.rank.pp_rank)
    if isinstance(pool, SWAKVPool):
        inner = ((pool.full_kv_pool, FULL, "kv"), (pool.swa_kv_pool, OTHERS, "window"))
    else:
        inner = ((pool.full_kv_pool, FULL, "kv"),)
        cache = pool.mamba_pool.mamba_cache
        for index, layer in enumerate([layer for layer in OTHERS if layer in own]):
            parts[f"state {layer} convolution"] = cache.conv[0][index], INPUTS
            parts[f"state {layer} recurrence"] = cache.temporal[index], [8]
    for of_kind, layers, kind in inner:
        for index, layer in enumerate([layer for layer in layers if layer in own]):
            for letter, tensors in (("k", of_kind.k_buffer), ("v", of_kind.v_buffer)):
                by_page = tensors[index].unflatten(0, (-1, PAGE_TOKENS)).transpose(1, 2)
                parts[f"{kind} {layer} {letter}"] = by_page, [HEAD_COUNT]
    return parts


def own_part(whole: Any, along: list[int], side: Side) -> Any:
    """A rank's part of what all ranks have, along the second axis: an equal share of each thing that lies there."""
    shares = [one.chunk(side.shape.tp_size, dim=1)[side.rank.tp_rank] for one in whole.split(along, dim=1)]
    return torch.cat(shares, dim=1)


class ShardedPools(ShardedPair):
    """All ranks of both engines."""

    def _scribble(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.whole: dict[str, Any] = {}
        for side in self.prefillers:
            for name, (tensor, along) in parts_of(side).items():
                if name not in self.whole:
                    shape = (tensor.shape[0], sum(along), *tensor.shape[2:])
                    self.whole[name] = torch.randn(shape, generator=generator).to(tensor.dtype)
                tensor.copy_(own_part(self.whole[name], along, side))

    def move_prompt(self, tokens: int) -> None:
        """Moves a prompt's pages, in two chunks where it has several, and what the second pool has of it."""
        self._draw(tokens)
        room, senders, receivers = self._begin_prompt(tokens)
        self.wait_until_stages_agree(senders)
        for side, sender in zip(self.prefillers, senders, strict=True):
            sender.init(len(self.pages[0]), 3)
            if len(self.pages[0]) > 1:
                sender.send(pages(*self.pages[0][:-1]))
            side.metadata.output_ids[3, 0], side.metadata.bootstrap_room[3, 0] = 9, room
            sender.send(pages(*self.pages[0][-1:]), [pages(*self.beside[0])])
        self.finish(senders, receivers)

    def _draw(self, tokens: int) -> None:
        draw, count = random.Random(tokens), -(-tokens // PAGE_TOKENS)
        in_window = count - max(0, tokens - WINDOW_TOKENS) // PAGE_TOKENS
        self._last_tokens = tokens - (count - 1) * PAGE_TOKENS
        self.pages = [draw.sample(range(1, 60), count) for _ in range(2)]
        is_windowed = isinstance(self.prefillers[0].pool, SWAKVPool)
        self.beside = [
            draw.sample(range(1, WINDOWED_PAGES), in_window) if is_windowed else [draw.randrange(1, SLOTS)]
            for _ in range(2)
        ]

    def _begin_prompt(self, tokens: int) -> tuple[int, list[Any], list[Any]]:
        """As ``begin``, with the indices of the second pool; ranks of the prefiller know the prompt's length."""
        for side in self.prefillers:
            side.endpoint.take_prompt_tokens = lambda: tokens
        room, senders, receivers = self.begin(None)
        for receiver in receivers:
            receiver.prompt_tokens = tokens
            receiver.send_metadata(pages(*self.pages[1]), 6, [pages(*self.beside[1])])
        return room, senders, receivers

    def refusal(self, tokens: int) -> str:
        """Why a decoder's rank does not receive a prompt from this prefiller."""
        self._draw(tokens)
        _room, senders, receivers = self._begin_prompt(tokens)
        until(lambda: receivers[0].poll() == KVPoll.Failed, "the fetch has failed")
        with pytest.raises(KVTransferError) as refused:
            receivers[0].failure_exception()
        for end in (*senders, *receivers):
            end.abort()
            end.clear()
        return str(refused.value)

    def assert_moved(self) -> None:
        for side in self.decoders:
            for name, (tensor, along) in parts_of(side).items():
                sources, targets = self.pages if name.startswith("kv") else self.beside
                sent, arrived = own_part(self.whole[name], along, side)[sources], tensor[targets]
                if not name.startswith("state"):  # heads that ranks divide go token by token, those of the prompt alone
                    sent[-1, :, self._last_tokens :] = arrived[-1, :, self._last_tokens :]
                assert torch.equal(sent, arrived), (side.rank, name)
