"""Data-parallel engines: ranks of an attention (``--enable-dp-attention``), and replicas of an engine (``--dp-size``).

Each has requests and pages of its own. SGLang lays the ranks of an attention out as (attention DP, attention TP); to
the other side, those that share one attention are an engine. Replicas it numbers apart: in each, the attention's rank
is 0. See sharded.py.
"""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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


SIDES = ("prefill", "decode")


def replicated_ways(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> Iterator[tuple[str, ...]]:
    """Which sides have replicas in place of an attention's ranks: every choice among those with several."""
    several = [side for side, shape in zip(SIDES, shapes, strict=True) if len(shape) > 3 and shape[3] > 1]
    for count in range(len(several) + 1):
        yield from itertools.combinations(several, count)


PAIRS = {
    f"{name}{''.join(f', {side} replicated' for side in replicated)}": (*shapes, replicated)
    for name, shapes in SHAPES.items()
    for replicated in replicated_ways(shapes)
}


def opened(
    folder: Path, prefill: tuple[int, ...], decode: tuple[int, ...], replicated: tuple[str, ...] = ()
) -> ShardedPair:
    with warnings.catch_warnings(action="ignore"):
        from one_process import Shape
        from sharded import ShardedPair

        shapes = zip(SIDES, (prefill, decode), strict=True)
        return ShardedPair(folder, *(Shape(*shape, replicated=side in replicated) for side, shape in shapes))


@pytest.fixture(params=PAIRS.values(), ids=PAIRS.keys())
def pair(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardedPair]:
    assert sglang_plugins is None
    one = opened(tmp_path_factory.mktemp("model"), *request.param)
    yield one
    one.close()


@pytest.fixture(params=[(), ("prefill",)], ids=["attention", "replicas"])
def two_to_one(
    request: pytest.FixtureRequest, sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShardedPair]:
    assert sglang_plugins is None
    one = opened(tmp_path_factory.mktemp("model"), (1, HEADS, 1, 2), (1, HEADS), request.param)
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


@pytest.mark.parametrize("query", [False, True], ids=["by room", "by query"])
@pytest.mark.parametrize(
    ("replicas", "attention"), [(1, 1), *((count, 1) for count in range(2, 9)), *((1, count) for count in range(2, 9))]
)
def test_should_take_a_room_on_the_rank_that_decoders_ask(
    monkeypatch: pytest.MonkeyPatch, replicas: int, attention: int, query: bool
) -> None:
    """SGLang sends a room to the worker ``room % count``, and its bootstrap server knows a worker by its number."""
    from sglang.srt import runtime_context

    from kv_connector.sglang import endpoint as of_endpoint

    monkeypatch.setenv("SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK", str(int(query)))
    registered: list[int] = []
    monkeypatch.setattr(of_endpoint, "register_room", lambda _address, _room, dp_rank: registered.append(dp_rank))
    count = replicas * attention
    parallel = SimpleNamespace(num_dp_ranks=count, load_balance_method="follow_bootstrap_room")
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: parallel)
    draw = random.Random(count)
    for worker in range(count):
        endpoint = SimpleNamespace(
            system_dp_size=replicas,
            system_dp_rank=worker if replicas > 1 else 0,
            attn_dp_rank=worker if attention > 1 else 0,
            prefillers=SimpleNamespace(run=lambda call: call()),
        )
        for room in (draw.randrange(1, 1 << 63) for _ in range(40)):
            place_room: Any = of_endpoint.TransferEndpoint.place_room
            refusal = place_room(endpoint, "127.0.0.1:1", room, dp_rank_is_known=False)
            expected = room % count
            is_taken = query or expected == worker
            assert (refusal == "") == is_taken, (worker, room)
            if not is_taken:
                assert f"room {room} came to data-parallel rank {worker}, expected {expected}" in refusal
        assert registered == ([worker] * 40 if query and count > 1 else [])
        registered.clear()
