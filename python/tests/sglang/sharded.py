"""A prefiller and a decoder of several ranks each, sharded differently, in one process; see one_process.py."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from one_process import (
    HEAD_COUNT,
    PAGE_TOKENS,
    OneProcessPipeline,
    Shape,
    Side,
    as_rank,
    backend_class,
    free_port,
    listens,
    pages,
    publish_arguments,
    until,
    wait_for,
)
from sglang.srt.disaggregation.base.conn import KVPoll

from kv_connector.sglang.hooks import poll_queued


class ShardedPair:
    """All ranks of both engines. What SGLang's ranks agree on by collectives is done here rank by rank."""

    def __init__(self, folder: Path, prefill: Shape, decode: Shape) -> None:
        self.port = port = free_port()
        self._arguments = arguments = publish_arguments(folder, port)
        self.address = f"127.0.0.1:{port}"
        self.bootstrap = backend_class("bootstrap_server")("127.0.0.1", port)
        until(lambda: listens(port), "the bootstrap server listens")
        self.prefill_groups = [self.opened("prefill", arguments, prefill, dp) for dp in range(prefill.dp_size)]
        self.decode_groups = [self.opened("decode", arguments, decode, dp) for dp in range(decode.dp_size)]
        self._rooms = itertools.count(2000)
        for dp_rank in range(prefill.dp_size):
            self.choose(dp_rank, 0)
            self._scribble(5 + dp_rank)
        self.choose(0, 0)

    def restart_prefiller(self, shape: Shape) -> None:
        """Ends all of the prefiller's ranks and opens it again at its address, with other ranks."""
        for side in (side for group in self.prefill_groups for side in group):
            side.endpoint.close()
        self.bootstrap.close()
        until(lambda: not listens(self.port), "the bootstrap server has ended")
        self.bootstrap = backend_class("bootstrap_server")("127.0.0.1", self.port)
        until(lambda: listens(self.port), "the bootstrap server listens")
        self.prefill_groups = [self.opened("prefill", self._arguments, shape, dp) for dp in range(shape.dp_size)]
        self.choose(0, 0)
        self._scribble(7)

    @staticmethod
    def opened(mode: str, arguments: Any, shape: Shape, dp_rank: int) -> list[Side]:
        pipelines: defaultdict[Any, OneProcessPipeline] = defaultdict(OneProcessPipeline)
        ranks = shape.ranks(dp_rank)
        return [Side.open(mode, arguments, shape, rank, pipelines[rank.cp_rank, rank.tp_rank]) for rank in ranks]

    def choose(self, prefill_dp_rank: int, decode_dp_rank: int) -> None:
        """Which of the data-parallel ranks the next requests go to: those that share one attention, on each side."""
        self.prefill_dp_rank = prefill_dp_rank
        self.prefillers = self.prefill_groups[prefill_dp_rank]
        self.decoders = self.decode_groups[decode_dp_rank]

    def _scribble(self, seed: int) -> None:
        """The prefiller's ranks hold their heads of one and the same model's KV."""
        generator = torch.Generator().manual_seed(seed)
        heads = 1 if self.prefillers[0].shape.latent else HEAD_COUNT
        whole: dict[str, Any] = {}
        for side in self.prefillers:
            for name, own in side.buffers_by_name().items():
                if name not in whole:
                    whole[name] = torch.randn((own.shape[0], heads, own.shape[2]), generator=generator)
                own.copy_(whole[name][:, side.shape.heads_of(side.rank.tp_rank)])

    def move(self, sources: list[int], targets: list[int], prefix_pages: int = 0, room: int = 0) -> int:
        """Moves a prompt's pages in two chunks, then the metadata; gives the room."""
        room, senders, receivers = self.begin(targets, prefix_pages * PAGE_TOKENS, room)
        self.wait_until_stages_agree(senders)
        for sender in senders:
            assert sender.pop_decode_prefix_len() == (0 if sender.stands_by else prefix_pages * PAGE_TOKENS)
            sender.init(len(sources), 3)
        for sender in senders:
            sender.send(pages(*sources[:1]))
        for side, sender in zip(self.prefillers, senders, strict=True):
            side.metadata.output_ids[3, 0] = 9
            side.metadata.bootstrap_room[3, 0] = room
            sender.send(pages(*sources[1:]), [])
        self.finish(senders, receivers)
        return room

    @staticmethod
    def finish(senders: list[Any], receivers: list[Any]) -> None:
        for end in (*senders, *receivers):
            wait_for(end, KVPoll.Success)
            end.clear()

    def wait_until_stages_agree(self, senders: list[Any], expected: int = KVPoll.WaitingForInput) -> None:
        """One round after the other as SGLang's queue of what waits: each stage looks, and the first asks for all."""
        first = [sender for sender in senders if sender.kv_mgr.pp_rank == 0]
        later = [SimpleNamespace(disagg_kv_sender=s) for s in senders if s.kv_mgr.pp_rank > 0]

        def agreed() -> bool:
            poll_queued(SimpleNamespace(pp_rank=1, queue=later))
            return min(int(sender.poll_pp_consensus()) for sender in first) == expected

        until(agreed, f"all stages agree on state {expected}")

    def senders(self, room: int) -> list[Any]:
        """One of each of the prefiller's ranks."""
        made = []
        for side in self.prefillers:
            with as_rank(side.shape, side.rank):
                made.append(backend_class("sender")(side.endpoint, self.address, room))
        return made

    def begin(self, targets: list[int] | None, prefix: int = 0, room: int = 0) -> tuple[int, list[Any], list[Any]]:
        """The room, senders that have been announced, and receivers that have granted, if there are targets."""
        receivers = []
        room = room or next(self._rooms)
        senders = self.senders(room)
        for side in self.decoders:
            receiver = backend_class("receiver")(side.endpoint, self.address, room)
            until(lambda e=side.endpoint: e.try_ensure_parallel_info(self.address), "the prefiller is known")
            receiver.init(self.prefill_dp_rank)
            wait_for(receiver, KVPoll.WaitingForInput)
            receivers.append(receiver)
        for receiver in receivers if targets is not None else []:
            receiver.send_metadata(pages(*targets), 6, decode_prefix_len=prefix)
        return room, senders, receivers

    def abort(self, targets: list[int]) -> None:
        """The decoder gives a request up that was granted by all its ranks."""
        _room, senders, receivers = self.begin(targets)
        self.wait_until_stages_agree(senders)
        for receiver in receivers:
            receiver.abort()
        self.wait_until_stages_agree(senders, KVPoll.Failed)
        for sender in senders:
            with pytest.raises(Exception, match=r"\w"):
                sender.failure_exception()
        for end in (*senders, *receivers):
            end.clear()

    def assert_equal_pages(self, sources: list[int], targets: list[int]) -> None:
        sent, arrived = self._whole(self.prefillers, sources), self._whole(self.decoders, targets)
        assert sent.keys() == arrived.keys()
        for name, there in arrived.items():
            assert torch.equal(sent[name], there), name

    @staticmethod
    def _whole(sides: list[Side], indices: list[int]) -> dict[str, Any]:
        """Pages by buffer and head, on whichever ranks they are; ranks with the same heads hold the same."""
        whole: dict[str, Any] = {}
        for side in sides:
            for name, buffer in side.buffers_by_name().items():
                slots = [page * PAGE_TOKENS + token for page in indices for token in range(PAGE_TOKENS)]
                for local, head in enumerate(range(HEAD_COUNT)[side.shape.heads_of(side.rank.tp_rank)]):
                    own = buffer[slots, local]
                    assert torch.equal(own, whole.setdefault(f"{name}, head {head}", own)), (side.rank, name, head)
        return whole

    def assert_metadata(self, room: int) -> None:
        for side in self.decoders:
            assert side.metadata.bootstrap_room[6, 0] == room
            assert side.metadata.output_ids[6, 0] == 9

    def all_ranks(self) -> list[Side]:
        return [side for group in (*self.decode_groups, *self.prefill_groups) for side in group]

    def assert_nothing_held(self) -> None:
        for side in self.all_ranks():
            until(lambda e=side.endpoint.exchange: not (e.drain() or e.held()), "all ended")
            until(lambda e=side.endpoint.exchange: e.leak_check().clean, "the messenger holds nothing")

    def close(self) -> None:
        for side in self.all_ranks():
            side.endpoint.close()
        self.bootstrap.close()
