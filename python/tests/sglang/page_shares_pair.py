"""A prefiller whose tensor-parallel ranks divide their pages, by SGLang's own pools, and a decoder; see sharded.py.

Each rank is given the KV of whole prompts, as each computes it, and SGLang's pool keeps the rank's own pages of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from one_process import LATENT_SIZE, ROPE_SIZE, RankInEngine, Shape, Side, pages, until
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.mem_cache import page_interleave_pool
from sglang.srt.mem_cache.allocator.page_interleave import PageInterleavePoolAllocator
from sglang.srt.mem_cache.page_interleave import PageShardSpec
from sharded import ShardedPair

from kv_connector.sglang.sglang_api import KVTransferError


class NoCommunicator:
    """Stands for the NCCL communicator of a pool that gathers nothing, as on a machine without a GPU."""

    def __init__(self, **_named: object) -> None:
        pass


@dataclass(frozen=True)
class DividedShape(Shape):
    """A prefiller that was started with ``--enable-kv-cache-sharding``."""

    latent: bool = True

    def group(self, rank: RankInEngine) -> Any:
        return SimpleNamespace(
            world_size=self.tp_size, rank_in_group=rank.tp_rank, cpu_group=None, device=torch.device("cpu")
        )

    def parallel_of(self, rank: RankInEngine) -> dict[str, Any]:
        one_context = SimpleNamespace(world_size=1, rank_in_group=0)
        return {
            "enable_kv_cache_sharding": True,
            "attn_tp_group": self.group(rank),
            "attn_cp_group": one_context,
        }

    def pool_on(self, mode: str, rank: RankInEngine) -> Any:  # noqa: ARG002 - a prefiller's
        layers = self.layers_of(rank.pp_rank)
        room = 4 * self.tp_size * self.page_tokens
        spec = PageShardSpec(rank.tp_rank, self.tp_size, self.page_tokens, max_prefix_tokens=room, chunk_tokens=room)
        page_interleave_pool.PyNcclCommunicator = NoCommunicator
        return page_interleave_pool.PageInterleaveMLATokenToKVPool(
            self.page_count * self.page_tokens,
            self.page_tokens,
            torch.bfloat16,
            LATENT_SIZE,
            ROPE_SIZE,
            len(layers),
            "cpu",
            enable_memory_saver=False,
            start_layer=layers.start,
            end_layer=layers.stop,
            shard_spec=spec,
            shard_group=self.group(rank),
        )


class DividedPair(ShardedPair):
    """All ranks of both engines; prompts are named by their pages, of all ranks together."""

    def _scribble(self, seed: int) -> None:
        """What no prompt has written differs on every rank: a page that is taken from another rank is seen."""
        for number, side in enumerate([*self.prefillers, *self.decoders]):
            side.scribble(100 * seed + number)

    @property
    def page_tokens(self) -> int:
        return int(self.prefillers[0].shape.page_tokens)

    def allocator(self) -> Any:
        pool = self.prefillers[0].pool
        shares = len({side.rank.tp_rank for side in self.prefillers})
        return PageInterleavePoolAllocator(
            pool.size,
            physical_page_size=self.page_tokens,
            shard_size=shares,
            dtype=torch.bfloat16,
            device="cpu",
            kvcache=pool,
            need_sort=False,
            shard_spec=pool.shard_spec,
        )

    def compute(self, sources: Sequence[int], seed: int) -> dict[str, Any]:
        """Has every rank write the prompt's KV, which is all of it, as a forward pass does; gives it by layer."""
        count = self.page_tokens
        slots = torch.tensor([page * count + token for page in sources for token in range(count)])
        generator = torch.Generator().manual_seed(seed)
        whole: dict[str, Any] = {}
        for side in self.prefillers:
            side.pool._epoch += 1  # as at each batch of SGLang: it keeps a rank's slots by their tensor's address
            for number, layer in enumerate(side.shape.layers_of(side.rank.pp_rank)):
                if str(layer) not in whole:
                    made = torch.randn((len(slots), 1, LATENT_SIZE + ROPE_SIZE), generator=generator)
                    whole[str(layer)] = made.to(torch.bfloat16)
                of_layer = SimpleNamespace(layer_id=side.pool.start_layer + number)
                side.pool.set_kv_buffer(of_layer, slots, whole[str(layer)], None)
        return whole

    def granted(self, targets: Sequence[int], prefix_pages: int = 0, room: int = 0) -> tuple[int, list[Any], list[Any]]:
        """(room, senders, receivers) of a request whose grants have all come."""
        room, senders, receivers = self.begin(list(targets), prefix_pages * self.page_tokens, room)
        self.wait_until_stages_agree(senders)
        return room, senders, receivers

    def send(self, room: int, side: Side, sender: Any, chunks: Sequence[Sequence[int]]) -> None:
        """All of a prompt from one rank, in chunks; the metadata goes with the last."""
        sender.pop_decode_prefix_len()
        sender.init(sum(map(len, chunks)), 3)
        side.metadata.output_ids[3, 0], side.metadata.bootstrap_room[3, 0] = 9, room
        for number, chunk in enumerate(chunks):
            sender.send(pages(*chunk), [] if number == len(chunks) - 1 else None)

    def move_prompt(
        self, chunks: Sequence[Sequence[int]], targets: Sequence[int], seed: int, prefix_pages: int = 0, room: int = 0
    ) -> int:
        """Computes a prompt, moves it, and compares every byte of the decoder's pages, and of those of others."""
        sources = [page for chunk in chunks for page in chunk]
        whole = self.compute(sources, seed)
        before = [side.all_pages([*range(side.shape.page_count)]) for side in self.decoders]
        room, senders, receivers = self.granted(targets, prefix_pages, room)
        for side, sender in zip(self.prefillers, senders, strict=True):
            self.send(room, side, sender, chunks)
        self.finish(senders, receivers)
        self.assert_metadata(room)
        self.assert_arrived(whole, targets, before)
        return room

    def assert_arrived(self, whole: dict[str, Any], targets: Sequence[int], before: Sequence[list[Any]]) -> None:
        for side, was in zip(self.decoders, before, strict=True):
            now = side.all_pages([*range(side.shape.page_count)])
            others = [page for page in range(side.shape.page_count) if page not in targets]
            for layer, buffer, old in zip(side.buffers_by_name(), now, was, strict=True):
                sent = whole[layer].unflatten(0, (-1, self.page_tokens))
                assert torch.equal(buffer[list(targets)].view(torch.int16), sent.view(torch.int16)), (side.rank, layer)
                assert torch.equal(buffer[others].view(torch.int16), old[others].view(torch.int16)), (side.rank, layer)

    @staticmethod
    def failures(receivers: Sequence[Any]) -> list[str]:
        """Why each of them fails."""
        sentences = []
        for receiver in receivers:
            until(lambda r=receiver: r.poll() == KVPoll.Failed, "the fetch has failed")
            try:
                receiver.failure_exception()
            except KVTransferError as failed:
                sentences.append(str(failed))
        return sentences

    @staticmethod
    def give_up(ends: Sequence[Any]) -> None:
        for end in ends:
            end.abort()
            end.clear()
