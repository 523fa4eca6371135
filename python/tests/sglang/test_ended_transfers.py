"""Transfers between SGLang's own pools that an abort, a decline or a limit ends: real messengers, one process."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


def test_should_hold_pages_of_an_aborted_request_until_nothing_can_write(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2, 11], slot=4)
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


@pytest.mark.parametrize("known", ["with its addresses", "without its addresses", "not at all"])
def test_should_decline_a_prompt_that_is_aborted_in_the_round_in_which_it_came(pair: Pair, known: str) -> None:
    """SGLang takes requests and aborts together, and polls afterwards; it may not have found the prefiller by then."""
    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll

    endpoint = pair.decoder.endpoint
    pair.receiver(pair.next_room()).abort()  # the prefiller is known from here on
    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.new_receiver(room)
    if known == "without its addresses":
        endpoint.prefillers.forget(pair.address)
    if known == "not at all":
        endpoint.forget_prefiller(pair.address)
    else:
        receiver.init(0)
    receiver.abort()
    receiver.clear()

    def declined() -> bool:
        endpoint.prefillers.late_declines.poll()  # as the scheduler's next rounds do
        return bool(sender.poll() == KVPoll.Failed)

    until(declined, "the prefiller has heard")
    with pytest.raises(Exception, match="declined the transfer"):
        sender.failure_exception()
    sender.clear()
    assert not endpoint.prefillers.late_declines.count()
    pair.assert_nothing_held()


def test_should_fail_the_decoder_when_the_prefiller_aborts(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2], slot=4)
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
    sender, receiver = pair.begin(room, [9], slot=4)
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
    sender, receiver = pair.begin(room, [9], slot=4)
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
    pair.assert_nothing_held()


def test_should_end_what_is_queued_when_sglang_drops_its_queue(pair: Pair) -> None:
    from kv_connector.sglang.hooks import abort_queued

    sender = pair.sender(pair.next_room())
    abort_queued(SimpleNamespace(queue=[SimpleNamespace(disagg_kv_sender=s) for s in (sender, None)]))
    pair.assert_nothing_held()


def test_should_take_a_second_abort_and_a_late_chunk_for_nothing(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2], slot=4)
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
