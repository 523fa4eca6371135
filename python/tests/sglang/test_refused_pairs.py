"""A prefiller that was found to compute another KV, between SGLang's own pools: nothing is fetched from it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

FINDING = "K of layer 0 differs by 1.7 of its largest number"


@pytest.fixture(scope="module")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    yield opened
    opened.close()


def transferred(pair: Pair) -> Any:
    """The receiver of a request whose KV has arrived."""
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(3), 1)
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(1, 2)
    pair.write_metadata(2, room, 123)
    sender.send(pages(5), [])
    wait_for(sender, KVPoll.Success)
    wait_for(receiver, KVPoll.Success)
    sender.clear()
    receiver.clear()
    return receiver


def test_a_prefiller_that_was_opened_again_is_unproven(pair: Pair) -> None:
    from kv_connector.sglang.pair_states import Verdict, Wanted

    check = pair.decoder.endpoint.pair_check
    arrival = transferred(pair).arrival
    check.pairs.conclude(arrival, Verdict(judged=True))
    assert check.pairs.wanted(arrival, 32) is Wanted.NOTHING
    assert check.pairs.wanted(transferred(pair).arrival, 32) is Wanted.NOTHING
    address = arrival.pair.prefillers[0]
    pair.decoder.endpoint.exchange.on_connected(address, "another process", 1)
    assert check.pairs.wanted(transferred(pair).arrival, 32) is Wanted.COMPARE


def test_nothing_is_fetched_from_a_refuted_prefiller_and_both_legs_end(pair: Pair) -> None:
    from one_process import pages, until
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang.pair_states import Verdict, Wanted
    from kv_connector.sglang.sglang_api import KVTransferError

    pairs = pair.decoder.endpoint.pair_check.pairs
    arrival = transferred(pair).arrival
    assert arrival.sessions >= 1, "the session was opened before the KV arrived"
    assert pairs.wanted(arrival, 32) is Wanted.COMPARE
    pairs.conclude(arrival, Verdict(True, 1.7, FINDING))

    room = pair.next_room()
    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(4), 1)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(KVTransferError, match=FINDING):
        receiver.failure_exception()
    receiver.ensure_abort_notified(force_arm=True)
    until(lambda: sender.poll() == KVPoll.Failed, "the prefiller's leg ends")
    sender.clear()
    receiver.clear()
    figures = pair.decoder.endpoint.exchange._messenger.stats().counters
    assert sum(count for name, count in figures.items() if "fetches_refuted" in str(name)) == 1, figures
    pair.assert_nothing_held()
