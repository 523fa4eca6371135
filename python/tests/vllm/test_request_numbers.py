"""A client names its requests as it likes: no text of it may reach Java, another rank, or the log in full."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_decode, remote_prefill
from simulated_messenger import SimulatedMessenger

from kv_connector import Failed
from kv_connector.memory.handover import MESSAGE_LENGTH_MAX_BYTES
from kv_connector.memory.votes import Votes
from kv_connector.runtime.facade import OUT_CAPACITY_BYTES
from kv_connector.vllm.request_numbers import NAME_LENGTH_MAX, RequestNames, RequestNumbers, shown

COMMAND_LENGTH_MAX_BYTES = 4096
LINE_LENGTH_MAX = 2000

NAMES = {
    "as long as a poll": "x" * OUT_CAPACITY_BYTES,
    "longer than a poll once escaped": "é" * (OUT_CAPACITY_BYTES // 6),
    "longer than a message between ranks": "r" * (MESSAGE_LENGTH_MAX_BYTES + 1),
    "a number like ours": "2",
    "a number of its own": "0",
    "empty": "",
    "NUL": "a\0b",
    "lines": "first\nrequest x has failed\r\n\x1b[31m",
    "half a surrogate pair": "half \ud83d of a pair",
    "emoji": "\N{GRINNING FACE}" * 300,
    "JSON": '","request":"1","x":"',
}


@pytest.fixture(params=list(NAMES), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return NAMES[request.param]


def check_texts(engine: SimulatedEngine, caplog: pytest.LogCaptureFixture) -> None:
    """What went to Java, before it is translated back for tests, and to the log."""
    assert engine.messenger.raw
    for command in engine.messenger.raw:
        assert len(json.dumps(command)) <= COMMAND_LENGTH_MAX_BYTES
    for record in caplog.records:
        message = record.getMessage()
        assert len(message) <= LINE_LENGTH_MAX
        assert message.isprintable(), "a client writes lines of its own"


PREFILL_ENDS = ("finished", "aborted while queued", "aborted", "preempted and aborted", "preempted and resumed")


@pytest.mark.parametrize("end", PREFILL_ENDS)
def test_should_free_the_prefillers_pages_whatever_the_request_is_called(
    engine: EngineMaker, name: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller = engine("kv_producer")
    with caplog.at_level("INFO"):
        prefiller.add("other", 300, remote_decode())
        prefiller.add(name, 700, remote_decode())
        if end != "aborted while queued":
            prefiller.steps(2)
        if end.startswith("preempted"):
            prefiller.preempt(name)
        if "aborted" in end:
            prefiller.abort(name)
        for _ in range(8):
            for request in prefiller.messenger.owes():
                prefiller.messenger.release(request)
            prefiller.step()
    assert prefiller.at_rest()
    assert prefiller.ended[name].name == ("FINISHED_ABORTED" if "aborted" in end else "FINISHED_LENGTH_CAPPED")
    check_texts(prefiller, caplog)


@pytest.mark.parametrize("end", ["arrived", "failed", "quarantined", "abandoned", "refused", "not taken"])
def test_should_free_the_decoders_pages_whatever_the_request_is_called(
    engine: EngineMaker, name: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = engine("kv_consumer")
    params = remote_prefill(remote_host=7) if end == "refused" else remote_prefill()
    with caplog.at_level("INFO"):
        decoder.add("other", 300, remote_prefill())
        decoder.add(name, 700, params)
        if end == "not taken":
            decoder.messenger.refuse.add("fetch")
        decoder.step()
        end_fetch(decoder, name, end)
        decoder.steps(8)
    assert name in decoder.ended
    assert decoder.at_rest()
    check_texts(decoder, caplog)


def end_fetch(decoder: SimulatedEngine, name: str, end: str) -> None:
    messenger = decoder.messenger
    if end == "arrived":
        messenger.arrive(name)
    elif end == "failed":
        messenger.fail(name)
    elif end == "quarantined":
        messenger.quarantine(name)
        decoder.steps(2)
        messenger.fail(name)
    elif end == "abandoned":
        decoder.abort(name)
        decoder.step()
        messenger.fail(name)
    if "other" in messenger.owes():
        messenger.arrive("other")


def test_should_keep_the_pages_of_two_requests_of_one_name_apart(engine: EngineMaker) -> None:
    """A client tries again with its X-Request-Id while a peer may still write to the pages of the first attempt."""
    decoder = engine("kv_consumer")
    for attempt in range(2):
        decoder.add("again", 700, remote_prefill())
        decoder.step()
        decoder.messenger.quarantine("again")
        decoder.steps(3)
        assert len(decoder.free_blocks) == decoder.block_count - 6 * (attempt + 1)
        decoder.messenger._loading.remove("again")
    first, second = (command["request"] for command in decoder.messenger.raw if command["do"] == "fetch")
    assert first != second

    for number, held in ((second, 6), (first, 0)):
        decoder.messenger.events.append(Failed(number, "simulated proof"))
        decoder.add(f"plain-{number}", 100, None)
        decoder.steps(2)
        assert len(decoder.free_blocks) == decoder.block_count - held
    assert decoder.at_rest()


def test_should_show_an_operator_a_requests_name_and_number(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = engine("kv_consumer")
    decoder.add("find-me-00000000", 700, remote_prefill())
    decoder.step()
    decoder.messenger.draw("t", side="decoder", request="find-me-00000000")
    decoder.messenger.fail("find-me-00000000", "it rained")
    with caplog.at_level("INFO"):
        decoder.step()
    assert "the KV of request find-me-00000000 (number 1) did not come: it rained" in caplog.text
    assert '"request":"find-me-00000000","number":"1"' in caplog.text


def test_should_cut_names_in_log_lines() -> None:
    assert shown("cmpl-1-0") == "cmpl-1-0"
    assert shown("x" * NAME_LENGTH_MAX) == "x" * NAME_LENGTH_MAX
    assert shown("x" * 1_100_000) == "x" * NAME_LENGTH_MAX + "… (1100000 characters)"
    assert shown("a\nb\ud83d") == r"a\nb\ud83d"


def test_should_give_each_request_a_number_of_its_own() -> None:
    numbers, names = RequestNumbers(), RequestNames()
    first = numbers.of("r")
    assert numbers.of("r") == first
    names.learn(numbers.take_new())
    assert numbers.take_new() == {}
    assert numbers.name(first) == "r"
    numbers.forget("r")
    assert numbers.is_empty()
    assert numbers.of("r") != first
    assert names.take([first, "17"]) == {first: "r"}
    assert len(names) == 0


def test_should_have_room_in_a_message_for_the_reports_of_a_whole_step() -> None:
    """A follower reads each message whole, and its socket has room for it: numbers are short."""
    votes = Votes({str(number) for number in range(10**12, 10**12 + 5000)}, set())
    assert max(map(len, votes.messages())) <= MESSAGE_LENGTH_MAX_BYTES // 2
    heard = Votes(set(), set())
    for message in votes.messages():
        heard.hear(message)
    assert heard == votes


def both_ranks_report(ranks: Any, messenger: SimulatedMessenger, name: str) -> list[set[str]]:
    made = ranks.release.metadata
    digest = "00" * 16
    announce = made.Announce("41", "t", digest)
    chunk = made.Chunk("41", "t", 20, 0, 0, 20, [made.PlacedBlocks(0, [0])], digest)
    begins = made.StepMetadata(step=1, names={"41": name}, announces=[announce], chunks=[chunk])
    ends = made.StepMetadata(step=2, prefill_ends=[made.PrefillEnded("41", "finished")])
    for meta in (begins, ends):
        for worker in ranks.workers:
            worker.bind_connector_metadata(meta)
            worker.wait_for_save()
    messenger.release("41")
    return [worker.get_transfer_results(set()).finished_sending for worker in ranks.workers]


def test_should_have_each_rank_report_a_request_whatever_it_is_called(
    vllm_release: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from test_ranks import Ranks, inside

    inside(monkeypatch, None)
    ranks = Ranks(vllm_release, monkeypatch)
    ranks.start()
    ((_, messenger, _),) = ranks.opened
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(both_ranks_report, ranks, messenger, name).result(60) == [{name}, {name}]
    assert all(len(worker._part.names) == 0 for worker in ranks.workers)
    ranks.end()


def test_should_keep_the_number_of_a_prompt_whose_prefix_another_connector_has_loaded(engine: EngineMaker) -> None:
    """Inside MultiConnector every connector hears of it. The prompt is announced by then, and computed afterwards."""
    prefiller = engine("kv_producer")
    prefiller.add("a-00000000", 100, remote_decode())
    half = prefiller.own_scheduler._scheduler
    number = half._numbers.of("a-00000000")
    half.reported((), {"a-00000000"})
    assert half._numbers.of("a-00000000") == number, "it would be announced by one number and computed by another"
