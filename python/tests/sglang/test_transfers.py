"""The backend between SGLang's own pools: real messengers, real bootstrap server, one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


def test_should_move_permuted_pages_in_chunks_and_the_metadata(pair: Pair) -> None:
    from one_process import pages

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2, 11], slot=4)
    sender.init(3, 2)
    sender.send(pages(3, 5))
    pair.write_metadata(2, room, 123)
    sender.send(pages(6), [])
    pair.finish(sender, receiver)

    pair.assert_equal_pages([3, 5, 6], [9, 2, 11])
    assert pair.decoder.metadata.bootstrap_room[4, 0] == room
    assert pair.decoder.metadata.output_ids[4, 0] == 123
    metric = sender.get_transfer_metric()
    kv_bytes = 3 * sum(pair.prefiller.endpoint.kv_args.kv_item_lens)
    assert metric.transfer_total_bytes == kv_bytes + sum(pair.prefiller.endpoint.kv_args.aux_item_lens)
    assert metric.alloc_latency_s is None, "the wait for pages is SGLang's bootstrap time"
    pair.assert_nothing_held()


def test_should_send_only_what_the_decoder_has_not_cached(pair: Pair) -> None:
    from one_process import PAGE_TOKENS, pages

    room = pair.next_room()
    sender, receiver = pair.begin(room, [20, 21], slot=1, prefix=3 * PAGE_TOKENS)
    assert sender.pop_decode_prefix_len() == 3 * PAGE_TOKENS
    sender.init(2, 1)
    pair.write_metadata(1, room, 7)
    sender.send(pages(30, 31), [])
    pair.finish(sender, receiver)

    pair.assert_equal_pages([30, 31], [20, 21])
    pair.assert_nothing_held()


def test_should_move_the_metadata_alone_when_the_decoder_has_all_pages(pair: Pair) -> None:
    from one_process import PAGE_TOKENS, pages

    room = pair.next_room()
    sender, receiver = pair.begin(room, [], slot=3, prefix=2 * PAGE_TOKENS)
    sender.init(0, 5)
    pair.write_metadata(5, room, 8)
    sender.send(pages(), [])
    pair.finish(sender, receiver)

    assert pair.decoder.metadata.output_ids[3, 0] == 8
    pair.assert_nothing_held()


def test_should_have_the_rows_that_a_draft_begins_with_in_place_when_a_transfer_is_over(pair: Pair) -> None:
    import torch
    from one_process import SLOT_COUNT, pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    def draft_rows(side: Any) -> list[Any]:
        return [side.metadata.output_hidden_states, side.metadata.output_topk_p, side.metadata.output_topk_index]

    bits = torch.Generator().manual_seed(7)
    for rows in draft_rows(pair.prefiller):
        rows.view(torch.uint8).random_(generator=bits)  # any bits, so also what is no number
    sources, targets = range(SLOT_COUNT), range(SLOT_COUNT - 1, -1, -1)
    rooms = [pair.next_room() for _ in sources]
    begun = [pair.begin(room, [slot + 1], slot) for room, slot in zip(rooms, targets, strict=True)]
    for (sender, _), room, slot in zip(begun, rooms, sources, strict=True):
        sender.init(1, slot)
        pair.write_metadata(slot, room, slot)
        sender.send(pages(slot + 1), [])
    for (sender, receiver), source, target in zip(begun, sources, targets, strict=True):
        wait_for(receiver, KVPoll.Success)
        for sent, arrived in zip(draft_rows(pair.prefiller), draft_rows(pair.decoder), strict=True):
            assert torch.equal(sent[source].view(torch.uint8), arrived[target].view(torch.uint8))
        pair.finish(sender, receiver)
    pair.assert_nothing_held()


def test_should_not_read_pages_before_their_event_is_over(pair: Pair) -> None:
    from one_process import pages
    from sglang.srt.disaggregation.base.conn import KVPoll

    class Event:
        over = False

        def query(self) -> bool:
            return self.over

    room = pair.next_room()
    sender, receiver = pair.begin(room, [40, 41], slot=0)
    sender.init(2, 0)
    event = Event()
    sender._early_send_wait_event = event
    sender.send(pages(50))
    pair.write_metadata(0, room, 9)
    sender.send(pages(51), [])
    assert sender.poll() == KVPoll.Transferring
    assert sender._pages.given == 2
    assert len(sender._chunks) == 2
    pair.prefiller.scribble(3)
    event.over = True
    pair.finish(sender, receiver)

    pair.assert_equal_pages([50, 51], [40, 41])
    pair.assert_nothing_held()


def test_should_fill_pages_once_when_a_room_is_asked_for_twice(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2], slot=4)
    before = pair.decoder.page(0, 30).clone()
    again = pair.receiver(room)
    again.send_metadata(pages(30, 31), 5, decode_prefix_len=0)
    until(lambda: again.poll() == KVPoll.Failed, "the second one is refused")
    with pytest.raises(Exception, match="granted or given up already"):
        again.failure_exception()
    sender.init(2, 2)
    pair.write_metadata(2, room, 6)
    sender.send(pages(3, 5), [])
    pair.finish(sender, receiver)
    again.clear()

    pair.assert_equal_pages([3, 5], [9, 2])
    assert (pair.decoder.page(0, 30) == before).all()
    pair.assert_nothing_held()


def test_should_serve_a_fetch_that_comes_before_its_room_is_computed_again(pair: Pair) -> None:
    """As after ``pause_generation`` with "retract": the decoder asks first, then has the prompt computed again."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9], slot=4)
    sender.init(1, 2)
    pair.write_metadata(2, room, 6)
    sender.send(pages(3), [])
    pair.finish(sender, receiver)
    again = pair.receiver(room)
    again.send_metadata(pages(30), 5, decode_prefix_len=0)
    assert again.poll() == KVPoll.Transferring
    sender = pair.sender(room)
    wait_for(sender, KVPoll.WaitingForInput)
    assert again.poll() == KVPoll.Transferring
    sender.init(1, 3)
    pair.write_metadata(3, room, 7)
    sender.send(pages(12), [])
    pair.finish(sender, again)

    pair.assert_equal_pages([3, 12], [9, 30])
    assert pair.decoder.metadata.output_ids[5, 0] == 7
    pair.assert_nothing_held()


def test_should_serve_a_room_that_is_used_again(pair: Pair) -> None:
    from one_process import pages

    room = pair.next_room()
    for source, target in ((3, 9), (5, 2)):
        sender, receiver = pair.begin(room, [target], slot=4)
        sender.init(1, 2)
        pair.write_metadata(2, room, source)
        sender.send(pages(source), [])
        pair.finish(sender, receiver)
        assert pair.decoder.metadata.output_ids[4, 0] == source
    pair.assert_equal_pages([3, 5], [9, 2])
    pair.assert_nothing_held()


def test_should_ask_again_where_a_restarted_prefiller_listens(pair: Pair) -> None:
    from one_process import free_port, pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.runtime.commands import PrefillerAddress

    known = pair.decoder.endpoint.prefillers._known
    pair.receiver(pair.next_room()).abort()
    for key in known:
        known[key] = PrefillerAddress("127.0.0.1", free_port())
    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(12), 0, decode_prefix_len=0)
    while sender.poll() == KVPoll.Bootstrapping:
        assert receiver.poll() == KVPoll.Transferring
    sender.init(1, 0)
    pair.write_metadata(0, room, 5)
    sender.send(pages(13), [])
    wait_for(receiver, KVPoll.Success)
    wait_for(sender, KVPoll.Success)
    pair.assert_equal_pages([13], [12])
    pair.assert_nothing_held()


def test_should_fail_requests_and_not_the_scheduler_when_a_prefiller_does_not_fit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    from one_process import backend_class, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    endpoint = pair.decoder.endpoint
    endpoint.forget_prefiller(pair.address)
    monkeypatch.setattr(endpoint.kv_args, "page_size", 32)
    until(lambda: endpoint.try_ensure_parallel_info(pair.address), "an answer has come")
    receiver = backend_class("receiver")(endpoint, pair.address, pair.next_room())
    receiver.init(0)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match="Page size mismatch"):
        receiver.failure_exception()
    endpoint.forget_prefiller(pair.address)


def test_should_send_a_layer_while_the_forward_pass_still_runs(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from one_process import LAYER_COUNT, PAGE_TOKENS, pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.layers.radix_attention import RadixAttention

    from kv_connector import LayerCounter
    from kv_connector.sglang.geometry import kv_buffers
    from kv_connector.sglang.layerwise import AttentionHooks, LayerwiseSteps
    from kv_connector.sglang.twins import Twins

    endpoint = pair.prefiller.endpoint
    names = [buffer.name for buffer in kv_buffers(endpoint.kv_args, latent=False)]
    monkeypatch.setattr(RadixAttention, "forward", lambda *_tensors: None)
    attention = torch.nn.ModuleList([RadixAttention(8, 8, 1.0, 4, layer) for layer in range(LAYER_COUNT)])
    hooks = AttentionHooks()
    hooks.install(attention)
    assert hooks.missing(names) == []
    counter = LayerCounter(endpoint.exchange._messenger.opened.layer_counter_address, names)
    hooks.count_into(counter, names)
    steps = LayerwiseSteps(endpoint.exchange, counter, Twins(PAGE_TOKENS, 1))

    room = pair.next_room()
    sender, receiver = pair.begin(room, [20, 21, 22], slot=1, prefix=PAGE_TOKENS)
    sender.init(3, 1)
    sender.send(pages(31))  # was in the prefiller's cache
    prompt_tokens = 4 * PAGE_TOKENS - 3
    table = {2: 32, 3: 33}
    k0, v0, k3 = 0, LAYER_COUNT, LAYER_COUNT - 1

    def plan() -> list[Any]:
        chunk = sender.plan(prompt_tokens, prompt_tokens, lambda first, end: [table[k] for k in range(first, end)])
        assert chunk is not None
        return [chunk]

    def forward() -> None:
        attention[0]()
        for source, target in ((32, 21), (33, 22)):
            for buffer in (k0, v0):
                until(
                    lambda b=buffer, s=source, t=target: torch.equal(
                        pair.prefiller.page(b, s), pair.decoder.page(b, t)
                    ),
                    "the first layer has come",
                )
            assert not torch.equal(pair.prefiller.page(k3, source), pair.decoder.page(k3, target))
        for layer in attention[1:]:
            layer()

    steps.run(plan, forward)
    assert receiver.poll() == KVPoll.Transferring
    pair.write_metadata(1, room, 77)
    sender.send(pages(32, 33), [])
    pair.finish(sender, receiver)

    pair.assert_equal_pages([31, 32, 33], [20, 21, 22])
    assert pair.decoder.metadata.output_ids[1, 0] == 77
    assert counter.steps_out_of_order == 0
    pair.assert_nothing_held()


def test_should_send_afterwards_what_the_messenger_would_not_plan(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from one_process import PAGE_TOKENS, pages

    from kv_connector import LayerCounter
    from kv_connector.sglang.layerwise import LayerwiseSteps
    from kv_connector.sglang.twins import Twins

    exchange = pair.prefiller.endpoint.exchange
    monkeypatch.setattr(exchange, "step", lambda *_plan: False)
    counter = LayerCounter(exchange._messenger.opened.layer_counter_address, ["layer.0.k"])
    steps = LayerwiseSteps(exchange, counter, Twins(PAGE_TOKENS, 1))
    room = pair.next_room()
    sender, receiver = pair.begin(room, [20, 21], slot=1)
    sender.init(2, 1)

    def plan() -> list[Any]:
        chunk = sender.plan(2 * PAGE_TOKENS, 2 * PAGE_TOKENS, lambda _first, _end: [30, 31])
        assert chunk is not None
        return [chunk]

    steps.run(plan, lambda: None)
    pair.write_metadata(1, room, 78)
    sender.send(pages(30, 31), [])
    pair.finish(sender, receiver)

    pair.assert_equal_pages([30, 31], [20, 21])
    pair.assert_nothing_held()
