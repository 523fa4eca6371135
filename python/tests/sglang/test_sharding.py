"""Engines of several ranks, sharded differently: SGLang's own pools, a real messenger for each rank, no scheduler."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sharded import ShardedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

HEADS, LATENT = False, True
SHAPES = {
    "heads, TP 2 to 1": ((2, HEADS), (1, HEADS)),
    "heads, TP 1 to 2": ((1, HEADS), (2, HEADS)),
    "heads, TP 2 to 2": ((2, HEADS), (2, HEADS)),
    "heads, TP 4 to 2": ((4, HEADS), (2, HEADS)),
    "more ranks than heads, TP 8 to 2": ((8, HEADS), (2, HEADS)),
    "latent, TP 1 to 1": ((1, LATENT), (1, LATENT)),
    "latent, TP 2 to 1": ((2, LATENT), (1, LATENT)),
    "latent, TP 1 to 2": ((1, LATENT), (2, LATENT)),
    "latent, TP 2 to 2": ((2, LATENT), (2, LATENT)),
    "heads, PP 2 to 1": ((1, HEADS, 2), (1, HEADS)),
    "heads, PP 3 to 1": ((1, HEADS, 3), (1, HEADS)),
    "heads, TP 2 PP 2 to TP 1": ((2, HEADS, 2), (1, HEADS)),
    "heads, PP 2 to TP 2": ((1, HEADS, 2), (2, HEADS)),
    "heads, PP 1 to 2": ((1, HEADS), (1, HEADS, 2)),
    "heads, PP 2 to 2": ((1, HEADS, 2), (1, HEADS, 2)),
    "heads, PP 3 to 2": ((1, HEADS, 3), (1, HEADS, 2)),
    "heads, TP 2 to PP 2": ((2, HEADS), (1, HEADS, 2)),
    "heads, TP 1 to TP 2 PP 2": ((1, HEADS), (2, HEADS, 2)),
    "heads, TP 2 PP 2 to PP 2": ((2, HEADS, 2), (1, HEADS, 2)),
    "heads, PP 2 to TP 2 PP 2": ((1, HEADS, 2), (2, HEADS, 2)),
    "heads, TP 2 PP 2 to TP 2 PP 2": ((2, HEADS, 2), (2, HEADS, 2)),
    "latent, PP 1 to 2": ((1, LATENT), (1, LATENT, 2)),
    "latent, TP 2 PP 2 to PP 2": ((2, LATENT, 2), (1, LATENT, 2)),
    "latent, PP 2 to 1": ((1, LATENT, 2), (1, LATENT)),
    "latent, TP 2 PP 2 to TP 2": ((2, LATENT, 2), (2, LATENT)),
    "heads, CP 2 to TP 2": ((1, HEADS, 1, 1, 2), (2, HEADS)),
    "latent, TP 2 CP 2 to TP 2": ((2, LATENT, 1, 1, 2), (2, LATENT)),
    "heads, PP 2 CP 2 to PP 2": ((1, HEADS, 2, 1, 2), (1, HEADS, 2)),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardedPair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from sharded import ShardedPair

        prefill, decode = request.param
        opened = ShardedPair(tmp_path_factory.mktemp("model"), Shape(*prefill), Shape(*decode))
    yield opened
    opened.close()


def test_should_move_every_head_to_every_rank_that_holds_it(pair: ShardedPair) -> None:
    rooms = [pair.move([3, 9, 4], [7 + n, 2, 21]) for n in range(3)]  # several: the transfer draws among replicas
    pair.assert_equal_pages([3, 9, 4], [9, 2, 21])
    pair.assert_metadata(rooms[-1])
    cached = pair.move([11, 12], [30, 31], prefix_pages=2)
    pair.assert_equal_pages([11, 12], [30, 31])
    pair.assert_metadata(cached)
    pair.abort([40, 41])
    pair.assert_nothing_held()


RESTARTS = {"TP 2, then 1": (2, 1), "TP 1, then 2": (1, 2), "TP 1, then 1": (1, 1)}


@pytest.mark.parametrize(("before", "after"), RESTARTS.values(), ids=RESTARTS.keys())
def test_should_find_a_prefiller_that_comes_back_with_other_ranks(
    sglang_plugins: None, tmp_path: Path, before: int, after: int
) -> None:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape, pages, until
        from sglang.srt.disaggregation.base.conn import KVPoll
        from sharded import ShardedPair

        pair = ShardedPair(tmp_path, Shape(before), Shape())
    with contextlib.closing(pair):
        pair.move([3, 9, 4], [7, 2, 21])
        pair.restart_prefiller(Shape(after))
        room, senders, (receiver,) = pair.begin([30, 31])

        def granted() -> bool:
            assert receiver.poll() == KVPoll.Transferring
            return all(sender.poll() == KVPoll.WaitingForInput for sender in senders)

        until(granted, "the first request after the restart has its grants")
        for side, sender in zip(pair.prefillers, senders, strict=True):
            sender.init(2, 3)
            side.metadata.output_ids[3, 0] = 9
            side.metadata.bootstrap_room[3, 0] = room
            sender.send(pages(11, 12), [])
        pair.finish(senders, [receiver])
        pair.assert_equal_pages([11, 12], [30, 31])
        pair.assert_metadata(room)
        assert pair.decoders[0].endpoint.prefill_info_table[pair.address].attn_tp_size == after
        pair.move([3, 9, 4], [7, 2, 21])
        pair.assert_nothing_held()


def test_should_fail_a_request_whose_prefiller_does_not_come_back(sglang_plugins: None, tmp_path: Path) -> None:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape, pages, until
        from sglang.srt.disaggregation.base.conn import KVPoll
        from sharded import ShardedPair

        pair = ShardedPair(tmp_path, Shape(), Shape())
    with contextlib.closing(pair):
        pair.move([3], [7])
        _room, _senders, (receiver,) = pair.begin(None)
        pair.prefillers[0].endpoint.close()
        pair.bootstrap.close()
        receiver.send_metadata(pages(8), 6, decode_prefix_len=0)
        until(lambda: receiver.poll() == KVPoll.Failed, "it is told")
        with pytest.raises(Exception, match="cannot be reached"):
            receiver.failure_exception()
        assert pair.address not in pair.decoders[0].endpoint.prefill_info_table, "the next request asks afresh"


def test_should_refuse_to_start_where_the_heads_cannot_be_split(sglang_plugins: None, tmp_path: Path) -> None:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape, Side, free_port, publish_arguments
    from kv_connector import KvConnectorError

    arguments = publish_arguments(tmp_path, free_port())
    with pytest.raises(KvConnectorError, match="tpSize is 3 with 4 KV heads, expected one to be a multiple"):
        Side.open("decode", arguments, Shape(3))


def test_should_fail_requests_whose_prefiller_cannot_be_split_so(sglang_plugins: None, tmp_path: Path) -> None:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape, backend_class, until
        from sglang.srt.disaggregation.base.conn import KVPoll
        from sharded import ShardedPair

        pair = ShardedPair(tmp_path, Shape(), Shape())
    endpoint = pair.decoders[0].endpoint
    with contextlib.closing(pair):
        until(lambda: endpoint.try_ensure_parallel_info(pair.address), "the prefiller is known")
        endpoint.prefill_info_table[pair.address].attn_tp_size = 3
        receiver = backend_class("receiver")(endpoint, pair.address, 1)
        receiver.init(0)
        assert receiver.poll() == KVPoll.Failed
        with pytest.raises(
            Exception, match="attention TP 3, expected a divisor or a multiple of the model's 4 KV heads"
        ):
            receiver.failure_exception()
