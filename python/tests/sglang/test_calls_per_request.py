"""What a request costs the threads of SGLang's schedulers, on which every other request waits meanwhile.

Counted in calls, which are the same on every machine: a check of SGLang's sources took 35,000 calls and 0.1 s, for each
request and on both sides, because SGLang asks for a backend's class with each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from counted_calls import counted_calls

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

CALLS_MAX = 1500
CALLS_PER_PAGE_MAX = 1.0


def calls_of_steps(pair: Pair, page_count: int) -> dict[str, int]:
    """Of a whole request, by what SGLang asks for; without the polls, of which there are as many as it has time for."""
    from one_process import KVPoll, pages, until, wait_for

    room, counts = pair.next_room(), {}
    with counted_calls() as calls:
        sender = pair.sender(room)
    counts["a sender is made"] = calls.count
    with counted_calls() as calls:
        receiver = pair.new_receiver(room)
    counts["a receiver is made"] = calls.count
    until(lambda: pair.decoder.endpoint.try_ensure_parallel_info(pair.address), "the prefiller is known")
    with counted_calls() as calls:
        receiver.init(0)
    counts["a receiver begins"] = calls.count
    wait_for(receiver, KVPoll.WaitingForInput)
    with counted_calls() as calls:
        sender.poll()
    counts["a sender is polled"] = calls.count
    with counted_calls() as calls:
        receiver.send_metadata(pages(*range(page_count)), 1, decode_prefix_len=0)
    counts["a receiver asks"] = calls.count
    wait_for(sender, KVPoll.WaitingForInput)
    with counted_calls() as calls:
        sender.init(page_count, 1)
    counts["a sender begins"] = calls.count
    pair.write_metadata(1, room, 7)
    with counted_calls() as calls:
        sender.send(pages(*range(page_count)), [])
    counts["a sender sends"] = calls.count
    pair.finish(sender, receiver)
    return counts


def test_a_request_costs_a_scheduler_few_calls_whatever_its_length(pair: Pair) -> None:
    calls_of_steps(pair, 1)  # what is imported or looked up once
    short, long = calls_of_steps(pair, 1), calls_of_steps(pair, 40)
    for step, calls in short.items():
        assert calls <= CALLS_MAX, step
        assert long[step] - calls <= 39 * CALLS_PER_PAGE_MAX, step
    pair.assert_nothing_held()
