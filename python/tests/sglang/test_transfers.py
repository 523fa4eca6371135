"""The backend between SGLang's own pools: real messengers, real bootstrap server, one process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="session")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests: it starts a JVM."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _scribbled(pair: Pair) -> None:
    pair.prefiller.scribble(1)
    pair.decoder.scribble(2)


def begin(pair: Pair, room: int, targets: list[int], slot: int, prefix: int = 0) -> tuple[Any, Any]:
    """(sender, receiver) with the decoder's grant given."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    sender, receiver = pair.sender(room), pair.receiver(room)
    assert sender.poll() == KVPoll.Bootstrapping
    receiver.send_metadata(pages(*targets), slot, decode_prefix_len=prefix)
    wait_for(sender, KVPoll.WaitingForInput)
    return sender, receiver


def finish(sender: Any, receiver: Any) -> None:
    from one_process import wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    wait_for(sender, KVPoll.Success)
    wait_for(receiver, KVPoll.Success)
    sender.clear()
    receiver.clear()


def test_should_move_permuted_pages_in_chunks_and_the_metadata(pair: Pair) -> None:
    from one_process import pages

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9, 2, 11], slot=4)
    sender.init(3, 2)
    sender.send(pages(3, 5))
    pair.write_metadata(2, room, 123)
    sender.send(pages(6), [])
    finish(sender, receiver)

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
    sender, receiver = begin(pair, room, [20, 21], slot=1, prefix=3 * PAGE_TOKENS)
    assert sender.pop_decode_prefix_len() == 3 * PAGE_TOKENS
    sender.init(2, 1)
    pair.write_metadata(1, room, 7)
    sender.send(pages(30, 31), [])
    finish(sender, receiver)

    pair.assert_equal_pages([30, 31], [20, 21])
    pair.assert_nothing_held()


def test_should_move_the_metadata_alone_when_the_decoder_has_all_pages(pair: Pair) -> None:
    from one_process import PAGE_TOKENS, pages

    room = pair.next_room()
    sender, receiver = begin(pair, room, [], slot=3, prefix=2 * PAGE_TOKENS)
    sender.init(0, 5)
    pair.write_metadata(5, room, 8)
    sender.send(pages(), [])
    finish(sender, receiver)

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
    begun = [begin(pair, room, [slot + 1], slot) for room, slot in zip(rooms, targets, strict=True)]
    for (sender, _), room, slot in zip(begun, rooms, sources, strict=True):
        sender.init(1, slot)
        pair.write_metadata(slot, room, slot)
        sender.send(pages(slot + 1), [])
    for (sender, receiver), source, target in zip(begun, sources, targets, strict=True):
        wait_for(receiver, KVPoll.Success)
        for sent, arrived in zip(draft_rows(pair.prefiller), draft_rows(pair.decoder), strict=True):
            assert torch.equal(sent[source].view(torch.uint8), arrived[target].view(torch.uint8))
        finish(sender, receiver)
    pair.assert_nothing_held()


def test_should_not_read_pages_before_their_event_is_over(pair: Pair) -> None:
    from one_process import pages
    from sglang.srt.disaggregation.base.conn import KVPoll

    class Event:
        over = False

        def query(self) -> bool:
            return self.over

    room = pair.next_room()
    sender, receiver = begin(pair, room, [40, 41], slot=0)
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
    finish(sender, receiver)

    pair.assert_equal_pages([50, 51], [40, 41])
    pair.assert_nothing_held()


def test_should_hold_pages_of_an_aborted_request_until_nothing_can_write(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9, 2, 11], slot=4)
    sender.init(3, 2)
    sender.send(pages(3, 5))
    receiver.abort()
    assert receiver.poll() == KVPoll.Failed
    assert receiver.abort_notified
    with pytest.raises(Exception, match="Aborted by AbortReq"):
        receiver.failure_exception()
    until(lambda: pair.decoder.endpoint.is_abort_release_safe(room, 1), "the pages are safe")
    until(lambda: sender.poll() == KVPoll.Failed, "the prefiller has heard")
    with pytest.raises(Exception, match="the decoder cancelled the transfer"):
        sender.failure_exception()
    sender.clear()
    receiver.clear()
    pair.assert_nothing_held()


def test_should_fail_the_decoder_when_the_prefiller_aborts(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9, 2], slot=4)
    sender.init(2, 2)
    sender.send(pages(3))
    sender.abort()
    assert sender.poll() == KVPoll.Failed
    until(lambda: receiver.poll() == KVPoll.Failed, "the decoder has heard")
    with pytest.raises(Exception, match="the prefiller's engine ended the request"):
        receiver.failure_exception()
    pair.assert_nothing_held()


def test_should_hold_an_abort_after_the_last_chunk_until_its_pages_are_read(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9], slot=4)
    sender.init(1, 2)
    pair.write_metadata(2, room, 1)
    sender.send(pages(3), [])
    sender.abort()
    until(lambda: sender.poll() == KVPoll.Failed, "the pages are released")
    assert sender._outgoing.released
    until(lambda: receiver.poll() in (KVPoll.Success, KVPoll.Failed), "the decoder has heard")
    pair.assert_nothing_held()


@pytest.mark.parametrize("on_other_thread", [True, False], ids=["another thread", "the scheduler's thread"])
def test_should_end_a_request_whose_recompute_could_not_be_asked_for(pair: Pair, on_other_thread: bool) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9], slot=4)
    endpoint = pair.decoder.endpoint

    def give_up() -> None:
        if on_other_thread:
            endpoint._fail_prefill_recompute(receiver, "the recompute failed")
        else:
            topology = endpoint.prefill_info_table.pop(pair.address)
            endpoint.submit_prefill_recompute(receiver, {"rid": "r"})
            endpoint.prefill_info_table[pair.address] = topology

    if on_other_thread:
        thread = threading.Thread(target=give_up)
        thread.start()
        thread.join()
        assert not receiver.abort_notified, "only the scheduler's thread may touch the transfer"
    else:
        give_up()
    assert receiver.poll() == KVPoll.Failed
    assert receiver.abort_notified
    with pytest.raises(Exception, match="the recompute failed" if on_other_thread else "could not resolve"):
        receiver.failure_exception()
    until(lambda: sender.poll() == KVPoll.Failed, "the prefiller has heard")
    until(lambda: endpoint.is_abort_release_safe(room, 1), "the pages are safe")
    sender.clear()
    receiver.clear()
    assert not endpoint.failure_records
    pair.assert_nothing_held()


def test_should_end_what_is_queued_when_sglang_drops_its_queue(pair: Pair) -> None:
    from kv_connector.sglang.hooks import abort_queued

    sender = pair.sender(pair.next_room())
    abort_queued(SimpleNamespace(queue=[SimpleNamespace(disagg_kv_sender=s) for s in (sender, None)]))
    pair.assert_nothing_held()


def test_should_fill_pages_once_when_a_room_is_asked_for_twice(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9, 2], slot=4)
    before = pair.decoder.page(0, 30).clone()
    again = pair.receiver(room)
    again.send_metadata(pages(30, 31), 5, decode_prefix_len=0)
    until(lambda: again.poll() == KVPoll.Failed, "the second one is refused")
    with pytest.raises(Exception, match="granted or given up already"):
        again.failure_exception()
    sender.init(2, 2)
    pair.write_metadata(2, room, 6)
    sender.send(pages(3, 5), [])
    finish(sender, receiver)
    again.clear()

    pair.assert_equal_pages([3, 5], [9, 2])
    assert (pair.decoder.page(0, 30) == before).all()
    pair.assert_nothing_held()


def test_should_serve_a_fetch_that_comes_before_its_room_is_computed_again(pair: Pair) -> None:
    """As after ``pause_generation`` with "retract": the decoder asks first, then has the prompt computed again."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9], slot=4)
    sender.init(1, 2)
    pair.write_metadata(2, room, 6)
    sender.send(pages(3), [])
    finish(sender, receiver)
    again = pair.receiver(room)
    again.send_metadata(pages(30), 5, decode_prefix_len=0)
    assert again.poll() == KVPoll.Transferring
    sender = pair.sender(room)
    wait_for(sender, KVPoll.WaitingForInput)
    assert again.poll() == KVPoll.Transferring
    sender.init(1, 3)
    pair.write_metadata(3, room, 7)
    sender.send(pages(12), [])
    finish(sender, again)

    pair.assert_equal_pages([3, 12], [9, 30])
    assert pair.decoder.metadata.output_ids[5, 0] == 7
    pair.assert_nothing_held()


def test_should_serve_a_room_that_is_used_again(pair: Pair) -> None:
    from one_process import pages

    room = pair.next_room()
    for source, target in ((3, 9), (5, 2)):
        sender, receiver = begin(pair, room, [target], slot=4)
        sender.init(1, 2)
        pair.write_metadata(2, room, source)
        sender.send(pages(source), [])
        finish(sender, receiver)
        assert pair.decoder.metadata.output_ids[4, 0] == source
    pair.assert_equal_pages([3, 5], [9, 2])
    pair.assert_nothing_held()


def test_should_take_a_second_abort_and_a_late_chunk_for_nothing(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = begin(pair, room, [9, 2], slot=4)
    sender.init(2, 2)
    sender.send(pages(3))
    for _ in range(2):
        receiver.abort()
        sender.abort()
    before = pair.decoder.page(0, 2).clone()
    sender.send(pages(5), [])
    assert sender.poll() == KVPoll.Failed
    until(lambda: pair.decoder.endpoint.is_abort_release_safe(room, 1), "the pages are safe")
    sender.clear()
    receiver.clear()
    assert (pair.decoder.page(0, 2) == before).all()
    pair.assert_nothing_held()


def test_should_let_the_prefiller_go_when_the_decoder_never_takes_the_request(pair: Pair) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.abort()
    assert not receiver.abort_notified
    until(lambda: sender.poll() == KVPoll.Failed, "the prefiller has heard")
    with pytest.raises(Exception, match="declined"):
        sender.failure_exception()
    pair.assert_nothing_held()


def test_should_let_a_prefillers_leg_go_at_once_that_comes_after_its_decoder_has_declined(pair: Pair) -> None:
    """The other order. That the decline has come is known from the next one's, on the same link."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    late, next_one = pair.next_room(), pair.next_room()
    waiting = pair.sender(next_one)
    for room in (late, next_one):
        pair.receiver(room).abort()
    until(lambda: waiting.poll() == KVPoll.Failed, "the prefiller has heard")
    sender = pair.sender(late)
    until(lambda: sender.poll() == KVPoll.Failed, "the leg that came late ends too")
    for ended in (waiting, sender):
        with pytest.raises(Exception, match="declined"):
            ended.failure_exception()
    pair.assert_nothing_held()


def test_should_not_wait_longer_than_sglang_says_for_a_decoder(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    monkeypatch.setattr(pair.prefiller.endpoint, "bootstrap_timeout", 0.01)
    sender = pair.sender(pair.next_room())
    until(lambda: sender.poll() == KVPoll.Failed, "the wait is over")
    with pytest.raises(Exception, match="SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"):
        sender.failure_exception()
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
    sender, receiver = begin(pair, room, [20, 21, 22], slot=1, prefix=PAGE_TOKENS)
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
    finish(sender, receiver)

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
    sender, receiver = begin(pair, room, [20, 21], slot=1)
    sender.init(2, 1)

    def plan() -> list[Any]:
        chunk = sender.plan(2 * PAGE_TOKENS, 2 * PAGE_TOKENS, lambda _first, _end: [30, 31])
        assert chunk is not None
        return [chunk]

    steps.run(plan, lambda: None)
    pair.write_metadata(1, room, 78)
    sender.send(pages(30, 31), [])
    finish(sender, receiver)

    pair.assert_equal_pages([30, 31], [20, 21])
    pair.assert_nothing_held()


def test_should_say_which_private_interface_of_sglang_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.disaggregation.common.conn import CommonKVSender

    from kv_connector import OptionError
    from kv_connector.sglang import sglang_api

    sglang_api.check()
    monkeypatch.setattr(CommonKVSender, "send", lambda self, pages: None)  # noqa: ARG005
    with pytest.raises(OptionError, match=r"CommonKVSender\.send\(self, pages\), expected .* made for SGLang 0\.5\.23"):
        sglang_api.check()


def test_should_say_which_private_attribute_of_sglang_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.disaggregation.decode import DecodeTransferQueue

    from kv_connector import OptionError
    from kv_connector.sglang import sglang_api

    def without(self: Any) -> None:
        self.release_timeout = 30.0

    monkeypatch.setattr(DecodeTransferQueue, "__init__", without)
    with pytest.raises(OptionError, match=r"DecodeTransferQueue.__init__ without self.deferred_kv_release_timeout"):
        sglang_api.check()


def test_should_say_which_hook_was_not_put_in_place(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins.hook_registry import HookRegistry

    from kv_connector import OptionError
    from kv_connector.sglang.registration import hook_scheduler

    assert pair.prefiller.endpoint.steps is None, "an endpoint has been opened, and with it the hooks are in place"
    hooked = Scheduler.run_batch
    hook_scheduler()
    assert Scheduler.run_batch is hooked, "hooked once"
    target = "sglang.srt.managers.scheduler.Scheduler.run_batch"
    monkeypatch.setattr(HookRegistry, "_patched", HookRegistry._patched - {target})
    monkeypatch.delattr(Scheduler, "run_batch")
    with pytest.raises(OptionError, match=r"has not let a plugin hook .*Scheduler\.run_batch"):
        hook_scheduler()


def test_should_refuse_what_was_not_shown_of_pools_beside_the_pages(pair: Pair) -> None:
    from one_process import RankInEngine, kv_args
    from sglang.srt.runtime_context import get_disagg, get_parallel

    from kv_connector import OptionError
    from kv_connector.sglang.engine_facts import refuse_unsupported

    args = kv_args("decode", pair.decoder.pool, pair.decoder.metadata, RankInEngine())
    for kinds in ([], ["swa"], ["dsa"], ["mamba"]):
        args.state_types = kinds
        refuse_unsupported(args, "decode")
    with (
        get_parallel().override(pp_size=2),
        pytest.raises(OptionError, match=r"--pp-size is 2, expected 1: a model that keeps mamba beside its KV pages"),
    ):
        refuse_unsupported(args, "prefill")
    with (
        get_disagg().override(disaggregation_decode_enable_radix_cache=True),
        pytest.raises(
            OptionError, match=r"decode-enable-radix-cache is True, expected False: a model that keeps mamba"
        ),
    ):
        refuse_unsupported(args, "decode")
    args.num_draft_entries = 2
    with pytest.raises(OptionError, match=r"the number of a draft's KV buffers is 2, expected 0: a model that keeps"):
        refuse_unsupported(args, "decode")
    for kinds in (["swa", "mamba"], ["dsa", "dsa_tail"], ["minimax_index_k"]):
        args.state_types = kinds
        with pytest.raises(
            OptionError, match=rf"state of the kinds {', '.join(kinds)} .*, or one of swa, mamba, dsa alone"
        ):
            refuse_unsupported(args, "decode")
