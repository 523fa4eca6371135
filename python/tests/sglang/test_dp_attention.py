"""Data-parallel attention (``--enable-dp-attention``): each of its ranks has requests and pages of its own.

SGLang lays its ranks out as (attention DP, attention TP). To the other side, those that share one attention are an
engine. See sharded.py.
"""

from __future__ import annotations

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
    "heads, DP 2 to DP 2": ((1, HEADS, 1, 2), (1, HEADS, 1, 2)),
    "heads, DP 2 TP 2 to TP 4": ((2, HEADS, 1, 2), (4, HEADS)),
    "heads, TP 4 to DP 2 TP 2": ((4, HEADS), (2, HEADS, 1, 2)),
    "latent, DP 2 to TP 2": ((1, LATENT, 1, 2), (2, LATENT)),
    "latent, TP 2 to DP 2": ((2, LATENT), (1, LATENT, 1, 2)),
    "latent, DP 2 PP 2 to DP 2": ((1, LATENT, 2, 2), (1, LATENT, 1, 2)),
}


def opened(folder: Path, prefill: tuple[int, ...], decode: tuple[int, ...]) -> ShardedPair:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from sharded import ShardedPair

        return ShardedPair(folder, Shape(*prefill), Shape(*decode))


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardedPair]:
    assert sglang_plugins is None
    one = opened(tmp_path_factory.mktemp("model"), *request.param)
    yield one
    one.close()


@pytest.fixture
def two_to_one(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShardedPair]:
    assert sglang_plugins is None
    one = opened(tmp_path_factory.mktemp("model"), (1, HEADS, 1, 2), (1, HEADS))
    yield one
    one.close()


def test_should_move_pages_between_the_ranks_that_have_the_request(pair: ShardedPair) -> None:
    import torch

    prefill_dp, decode_dp = len(pair.prefill_groups), len(pair.decode_groups)
    room = 4000
    for target in range(prefill_dp):
        for decoder in range(decode_dp):
            pair.choose(target, decoder)
            others = [side for group in pair.decode_groups if group is not pair.decoders for side in group]
            before = [[buffer.clone() for buffer in side.buffers()] for side in others]
            room += prefill_dp
            pair.move([3, 9, 4], [7, 2, 21], room=room + target)  # the room says which rank computes it
            pair.assert_equal_pages([3, 9, 4], [7, 2, 21])
            pair.assert_metadata(room + target)
            for side, kept in zip(others, before, strict=True):
                assert all(torch.equal(*both) for both in zip(side.buffers(), kept, strict=True))
    pair.assert_nothing_held()


def test_should_fail_a_request_that_came_to_another_rank_than_decoders_ask(two_to_one: ShardedPair) -> None:
    from one_process import as_rank, backend_class
    from sglang.srt.disaggregation.base.conn import KVPoll

    two_to_one.choose(1, 0)
    (side,) = two_to_one.prefillers
    with as_rank(side.shape, side.rank):
        sender = backend_class("sender")(side.endpoint, two_to_one.address, 4000)
    assert sender.poll() == KVPoll.Failed
    with pytest.raises(Exception, match="room 4000 came to data-parallel rank 1, expected 0"):
        sender.failure_exception()
    two_to_one.assert_nothing_held()


def test_should_let_decoders_ask_which_rank_has_a_room(
    two_to_one: ShardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from one_process import until
    from sglang.srt.disaggregation.common.conn import CommonKVReceiver

    monkeypatch.setenv("SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK", "1")
    two_to_one.choose(1, 0)
    room = two_to_one.move([3, 9], [7, 2], room=4000)  # the room itself would say 0
    until(
        lambda: CommonKVReceiver.query_prefill_dp_ranks(two_to_one.address, [room]) == {str(room): 1},
        "the bootstrap server knows",
    )
    two_to_one.assert_equal_pages([3, 9], [7, 2])
    two_to_one.assert_nothing_held()
