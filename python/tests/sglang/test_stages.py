"""A prefiller of two pipeline stages: what they agree on before, during and after a transfer; see sharded.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sharded import ShardedPair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pair(open_ranks: Callable[..., ShardedPair]) -> ShardedPair:
    return open_ranks({"pp_size": 2}, {})


@pytest.fixture(autouse=True)
def _scribbled(pair: ShardedPair) -> None:
    pair.decoders[0].scribble(2)


def give_last_chunk(pair: ShardedPair, stage: int, sender: Any, room: int, page_indices: list[int]) -> None:
    """As SGLang does on each stage when the last one's token has come round: the row is written, then all is sent."""
    from one_process import pages

    metadata = pair.prefillers[stage].metadata
    metadata.output_ids[3, 0] = 9
    metadata.bootstrap_room[3, 0] = room
    sender.send(pages(*page_indices), [])


def test_should_not_begin_before_the_last_stage_has_its_grant(pair: ShardedPair) -> None:
    from one_process import PAGE_TOKENS, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, (first, last), (receiver,) = pair.begin([7, 2], prefix=PAGE_TOKENS)
    wait_for(first, KVPoll.WaitingForInput)
    assert first.poll_pp_consensus() == KVPoll.Bootstrapping
    pair.wait_until_stages_agree([first, last])
    assert last.pop_decode_prefix_len() == PAGE_TOKENS
    for stage, sender in enumerate((first, last)):
        sender.init(2, 3)
        give_last_chunk(pair, stage, sender, room, [3, 4])
    pair.finish([first, last], [receiver])
    pair.assert_equal_pages([3, 4], [7, 2])
    pair.assert_nothing_held()


@pytest.mark.parametrize("earlier", [0, 1])
def test_should_not_arrive_before_each_stage_has_sent_layers_and_metadata(pair: ShardedPair, earlier: int) -> None:
    from one_process import wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, (receiver,) = pair.begin([7, 2])
    pair.wait_until_stages_agree(senders)
    for sender in senders:
        sender.init(2, 3)
    give_last_chunk(pair, earlier, senders[earlier], room, [3, 4])
    wait_for(senders[earlier], KVPoll.Success)
    assert receiver.poll() == KVPoll.Transferring
    give_last_chunk(pair, 1 - earlier, senders[1 - earlier], room, [3, 4])
    pair.finish(senders, [receiver])
    pair.assert_equal_pages([3, 4], [7, 2])
    pair.assert_metadata(room)
    pair.assert_nothing_held()


def test_should_hold_pages_until_no_stage_can_write_when_a_request_is_aborted_halfway(pair: ShardedPair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, (receiver,) = pair.begin([7, 2])
    pair.wait_until_stages_agree(senders)
    for sender in senders:
        sender.init(2, 3)
    senders[0].send(pages(3))  # the other stage has not computed anything yet
    receiver.abort()
    until(lambda: pair.decoders[0].endpoint.is_abort_release_safe(room, 2), "nothing can write to the pages")
    pair.decoders[0].scribble(6)
    before = pair.decoders[0].pool.k_buffer[0].clone()
    for stage, sender in enumerate(senders):
        until(lambda s=sender: s.poll() == KVPoll.Failed, "the stage has heard")
        give_last_chunk(pair, stage, sender, room, [3, 4][1 - stage :])
        with pytest.raises(Exception, match=r"gave|abandon|cancel"):
            sender.failure_exception()
    assert (pair.decoders[0].pool.k_buffer[0] == before).all()
    pair.assert_nothing_held()


@pytest.mark.parametrize("stage", [0, 1])
def test_should_fail_on_all_stages_what_one_of_them_gave_up_before_it_was_computed(
    pair: ShardedPair, stage: int
) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    _room, senders, (receiver,) = pair.begin([7, 2])
    senders[stage].abort()
    pair.wait_until_stages_agree(senders, KVPoll.Failed)
    for sender in (senders[stage], senders[1 - stage]):
        # The other stage may hear it first from the decoder, which then wants nothing of either.
        with pytest.raises(Exception, match="Aborted" if sender is senders[stage] else r"another rank|cancelled"):
            sender.failure_exception()
    until(lambda: receiver.poll() == KVPoll.Failed, "the decoder has heard")
    receiver.clear()
    pair.assert_nothing_held()


def test_should_refuse_a_fetch_that_comes_after_all_stages_gave_the_request_up(pair: ShardedPair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    _room, senders, (receiver,) = pair.begin(None)
    for sender in senders:
        sender.abort()
        with pytest.raises(Exception, match="Aborted"):
            sender.failure_exception()
    receiver.send_metadata(pages(7, 2), 6, decode_prefix_len=0)
    until(lambda: receiver.poll() == KVPoll.Failed, "it is told that there is nothing any more")
    with pytest.raises(Exception, match="the prefiller's engine ended the request"):
        receiver.failure_exception()
    receiver.clear()
    pair.assert_nothing_held()


def test_should_serve_a_room_that_is_used_again(pair: ShardedPair) -> None:
    from one_process import wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room, senders, receivers = pair.begin([7])
    for _ in range(2):
        wait_for(senders[0], KVPoll.WaitingForInput)
        assert senders[0].poll_pp_consensus() == KVPoll.Bootstrapping, "what the other stage said of another request"
        pair.wait_until_stages_agree(senders)
        for stage, sender in enumerate(senders):
            sender.init(1, 3)
            give_last_chunk(pair, stage, sender, room, [3])
        pair.finish(senders, receivers)
        _room, senders, receivers = pair.begin([8], room=room)
    for end in (*receivers, *senders):
        end.abort()
    pair.wait_until_stages_agree(senders, KVPoll.Failed)
    pair.assert_nothing_held()


def test_should_send_the_layers_of_each_stage_while_its_forward_pass_runs(
    pair: ShardedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from one_process import PAGE_TOKENS, until
    from sglang.srt.layers.radix_attention import RadixAttention

    from kv_connector import LayerCounter
    from kv_connector.sglang.geometry import kv_buffers
    from kv_connector.sglang.layerwise import AttentionHooks, LayerwiseSteps
    from kv_connector.sglang.twins import Twins

    monkeypatch.setattr(RadixAttention, "forward", lambda *_tensors: None)
    room, senders, receivers = pair.begin([20, 21])
    pair.wait_until_stages_agree(senders)
    arrived = pair.decoders[0].buffers_by_name()
    for stage, (side, sender) in enumerate(zip(pair.prefillers, senders, strict=True)):
        layers = side.shape.layers_of(stage)
        names = [buffer.name for buffer in kv_buffers(side.endpoint.kv_args, latent=False)]
        assert names == [f"layer.{layer}.{part}" for layer in layers for part in "kv"]
        attention = torch.nn.ModuleList([RadixAttention(8, 8, 1.0, 4, layer) for layer in layers])
        hooks = AttentionHooks()
        hooks.install(attention)
        counter = LayerCounter(side.endpoint.exchange._messenger.opened.layer_counter_address, names)
        hooks.count_into(counter, names)
        sender.init(2, 3)

        def plan(sender: Any = sender) -> list[Any]:
            chunk = sender.plan(2 * PAGE_TOKENS, 2 * PAGE_TOKENS, lambda _first, _end: [31, 32])
            assert chunk is not None
            return [chunk]

        def forward(attention: Any = attention, side: Any = side, layers: range = layers) -> None:
            source, target, tokens = 31 * PAGE_TOKENS, 20 * PAGE_TOKENS, 2 * PAGE_TOKENS
            own = side.buffers_by_name()

            def came(name: str) -> bool:
                return torch.equal(own[name][source : source + tokens], arrived[name][target : target + tokens])

            attention[0]()
            until(lambda: came(f"{layers[0]}k") and came(f"{layers[0]}v"), "the stage's first layer has come")
            assert not came(f"{layers[-1]}k")
            for layer in attention[1:]:
                layer()

        LayerwiseSteps(side.endpoint.exchange, counter, Twins(PAGE_TOKENS, 1)).run(plan, forward)
        assert counter.steps_out_of_order == 0
        assert counter.position == 2 * len(layers)
    for stage, sender in enumerate(senders):
        give_last_chunk(pair, stage, sender, room, [31, 32])
    pair.finish(senders, receivers)
    pair.assert_equal_pages([31, 32], [20, 21])
    pair.assert_metadata(room)
    pair.assert_nothing_held()
