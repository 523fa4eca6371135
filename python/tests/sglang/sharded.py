"""A prefiller and a decoder of several ranks each, sharded differently, in one process; see one_process.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from one_process import (
    HEAD_COUNT,
    PAGE_TOKENS,
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


class ShardedPair:
    """All ranks of both engines. What SGLang's ranks agree on by collectives is done here rank by rank."""

    def __init__(self, folder: Path, prefill: Shape, decode: Shape) -> None:
        port = free_port()
        arguments = publish_arguments(folder, port)
        self.address = f"127.0.0.1:{port}"
        self.bootstrap = backend_class("bootstrap_server")("127.0.0.1", port)
        until(lambda: listens(port), "the bootstrap server listens")
        self.prefillers = [Side.open("prefill", arguments, prefill, rank) for rank in range(prefill.tp_size)]
        self.decoders = [Side.open("decode", arguments, decode, rank) for rank in range(decode.tp_size)]
        self._rooms = itertools.count(2000)
        self._scribble()

    def _scribble(self) -> None:
        """The prefiller's ranks hold their heads of one and the same model's KV."""
        generator = torch.Generator().manual_seed(5)
        for buffer in range(len(self.prefillers[0].buffers())):
            heads = 1 if self.prefillers[0].shape.latent else HEAD_COUNT
            own = self.prefillers[0].buffers()[buffer]
            whole = torch.randn((own.shape[0], heads, own.shape[2]), generator=generator)
            for rank, side in enumerate(self.prefillers):
                side.buffers()[buffer].copy_(whole[:, side.shape.heads_of(rank)])

    def move(self, sources: list[int], targets: list[int], prefix_pages: int = 0) -> int:
        """Moves a prompt's pages in two chunks, then the metadata; gives the room."""
        room = next(self._rooms)
        senders, receivers = self._begin(room, targets, prefix_pages * PAGE_TOKENS)
        for side, sender in zip(self.prefillers, senders, strict=True):
            wait_for(sender, KVPoll.WaitingForInput)
            assert sender.pop_decode_prefix_len() == prefix_pages * PAGE_TOKENS
            sender.init(len(sources), 3)
            side.metadata.output_ids[3, 0] = 9
            side.metadata.bootstrap_room[3, 0] = room
        for sender in senders:
            sender.send(pages(*sources[:1]))
        for sender in senders:
            sender.send(pages(*sources[1:]), [])
        for end in (*senders, *receivers):
            wait_for(end, KVPoll.Success)
            end.clear()
        return room

    def _begin(self, room: int, targets: list[int], prefix: int) -> tuple[list[Any], list[Any]]:
        """Senders that have been announced, and receivers that have granted."""
        senders, receivers = [], []
        for rank, side in enumerate(self.prefillers):
            with as_rank(side.shape, rank):
                senders.append(backend_class("sender")(side.endpoint, self.address, room))
        for side in self.decoders:
            receiver = backend_class("receiver")(side.endpoint, self.address, room)
            until(lambda e=side.endpoint: e.try_ensure_parallel_info(self.address), "the prefiller is known")
            receiver.init(0)
            wait_for(receiver, KVPoll.WaitingForInput)
            receivers.append(receiver)
        for receiver in receivers:
            receiver.send_metadata(pages(*targets), 6, decode_prefix_len=prefix)
        return senders, receivers

    def abort(self, targets: list[int]) -> None:
        """The decoder gives a request up that was granted by all its ranks."""
        senders, receivers = self._begin(next(self._rooms), targets, 0)
        for sender in senders:
            wait_for(sender, KVPoll.WaitingForInput)
        for receiver in receivers:
            receiver.abort()
        for sender in senders:
            until(lambda s=sender: s.poll() == KVPoll.Failed, "the prefiller has heard")
        for end in (*senders, *receivers):
            end.clear()

    def assert_equal_pages(self, sources: list[int], targets: list[int]) -> None:
        for buffer in range(len(self.decoders[0].buffers())):
            for source, target in zip(sources, targets, strict=True):
                sent = self._whole(self.prefillers, buffer, source)
                arrived = self._whole(self.decoders, buffer, target)
                assert torch.equal(sent, arrived), (buffer, source, target)

    @staticmethod
    def _whole(sides: list[Side], buffer: int, page: int) -> Any:
        """All heads of a page, by whichever ranks hold them; ranks with the same heads hold the same."""
        heads: dict[int, Any] = {}
        for rank, side in enumerate(sides):
            for local, head in enumerate(range(HEAD_COUNT)[side.shape.heads_of(rank)]):
                own = side.page(buffer, page)[:, local]
                assert torch.equal(own, heads.setdefault(head, own)), (rank, head)
        return torch.stack([heads[head] for head in sorted(heads)])

    def assert_metadata(self, room: int) -> None:
        for side in self.decoders:
            assert side.metadata.bootstrap_room[6, 0] == room
            assert side.metadata.output_ids[6, 0] == 9

    def assert_nothing_held(self) -> None:
        for side in (*self.prefillers, *self.decoders):
            until(lambda e=side.endpoint.exchange: not (e.drain() or e.held()), "all ended")
            until(lambda e=side.endpoint.exchange: e.leak_check().clean, "the messenger holds nothing")

    def close(self) -> None:
        for side in (*self.decoders, *self.prefillers):
            side.endpoint.close()
        self.bootstrap.close()
