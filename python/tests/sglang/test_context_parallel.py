"""A prefiller whose ranks share the context of a prompt: each holds all KV, one of them sends; see sharded.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sharded import ShardedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pair(open_ranks: Callable[..., ShardedPair]) -> ShardedPair:
    return open_ranks({"cp_size": 2}, {})


def test_should_take_all_kv_from_the_rank_that_the_room_draws(pair: ShardedPair) -> None:
    import torch
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    drawn = []
    for _ in range(2):
        for seed, side in enumerate((*pair.prefillers, *pair.decoders)):
            side.scribble(seed)
        room, senders, receivers = pair.begin([7, 2])
        pair.wait_until_stages_agree(senders)
        (sending,) = (rank for rank, sender in enumerate(senders) if not sender.stands_by)
        drawn.append(sending)
        for sender in senders:
            sender.init(2, 3)
            sender.send(pages(3))
        assert senders[1 - sending].poll() == KVPoll.Transferring, "it ends with the last chunk"
        for side, sender in zip(pair.prefillers, senders, strict=True):
            side.metadata.output_ids[3, 0] = 9
            side.metadata.bootstrap_room[3, 0] = room
            sender.send(pages(4), [])
        wait_for(receivers[0], KVPoll.Success)
        for sent, arrived in zip(
            pair.prefillers[sending].all_pages([3, 4]), pair.decoders[0].all_pages([7, 2]), strict=True
        ):
            assert torch.equal(sent, arrived)
        pair.finish(senders, receivers)
        pair.assert_metadata(room)
        pair.assert_nothing_held()
    assert sorted(drawn) == [0, 1], "neighbouring rooms are sent by both"


def test_should_fail_on_all_ranks_what_the_decoder_gives_up(pair: ShardedPair) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    _room, senders, (receiver,) = pair.begin([7, 2])
    pair.wait_until_stages_agree(senders)
    receiver.abort()
    pair.wait_until_stages_agree(senders, KVPoll.Failed)
    for sender in senders:
        match = "another rank" if sender.stands_by else r"gave|abandon|cancel"
        with pytest.raises(Exception, match=match):
            sender.failure_exception()
        assert sender.poll() == KVPoll.Failed
    for end in (*senders, receiver):
        end.clear()
    pair.assert_nothing_held()


def test_should_draw_each_rank_equally_often_on_each_data_parallel_rank() -> None:
    from kv_connector.sglang.prefillers import cp_rank_of

    for dp_rank in range(2):
        drawn = [cp_rank_of(room, 2, 4) for room in range(1000, 1800) if room % 2 == dp_rank]
        assert {drawn.count(rank) for rank in range(4)} == {100}


def test_should_refuse_ranks_that_each_hold_a_part_of_the_context(pair: ShardedPair) -> None:
    from one_process import RankInEngine, Shape, as_rank
    from sglang.srt.runtime_context import get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.refusals import refuse_unsupported

    args = pair.prefillers[0].endpoint.kv_args
    with as_rank(Shape(cp_size=2), RankInEngine()):
        refuse_unsupported(args, "prefill")
        with pytest.raises(OptionError, match=r"--attn-cp-size is 2, expected 1: only a prefiller"):
            refuse_unsupported(args, "decode")
        for field, named in {
            "enable_dsa_cache_layer_split": "--enable-dsa-cache-layer-split",
            "enable_cp_tp_group_sharing": "sharing of the CP and TP groups",
        }.items():
            with (
                get_parallel().override(**{field: True}),
                pytest.raises(OptionError, match=f"{named} is True, expected False: with --attn-cp-size above 1"),
            ):
                refuse_unsupported(args, "prefill")
