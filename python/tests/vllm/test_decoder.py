from __future__ import annotations

from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import remote_decode, remote_prefill

from kv_connector import MessengerError
from kv_connector.naming.prompt_digest import prompt_digest

REQUEST = "chatcmpl-0123456789abcdef-89abcdef"
TRANSFER = "chatcmpl-0123456789abcdef"


def test_should_fetch_the_whole_prompt_and_compute_one_token(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(), max_tokens=3)
    decoder.steps(3)
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert fetch == {
        "do": "fetch",
        "request": REQUEST,
        "transfer": TRANSFER,
        "prefillers": [{"host": "127.0.0.1", "port": 14579, "engineId": "engine-kv_producer"}],
        "promptTokens": 700,
        "firstToken": 0,
        "groups": [{"pages": [0, 1, 2, 3, 4, 5]}],
        "limitMillis": 0,
        "promptDigest": prompt_digest(range(700)),
    }
    assert not decoder.running

    decoder.messenger.arrive(REQUEST)
    decoder.step()
    assert not decoder.worker.has_connector_metadata()
    decoder.step()
    assert decoder.requests[REQUEST].num_computed_tokens == 700
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_leave_out_pages_that_the_prefix_cache_has(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(), cached=384)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["firstToken"], fetch["groups"][0]["pages"]) == (384, [3, 4, 5])


@pytest.mark.parametrize(
    ("prompt_tokens", "pages"), [(1, 1), (2, 1), (127, 1), (128, 1), (129, 2), (200, 2), (1500, 12)]
)
def test_should_give_every_page_that_the_prompt_needs(engine: EngineMaker, prompt_tokens: int, pages: int) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, prompt_tokens, remote_prefill())
    decoder.step()
    assert len(decoder.messenger.of_kind("fetch")[0]["groups"][0]["pages"]) == pages
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_give_no_more_pages_than_the_prompt_needs_when_blocks_are_split(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", page_tokens=32)
    decoder.add(REQUEST, 140, remote_prefill())
    decoder.step()
    assert decoder.messenger.of_kind("fetch")[0]["groups"][0]["pages"] == [0, 1, 2, 3, 4]


def test_should_meet_by_the_transfer_id_when_the_router_gives_one(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 20, remote_prefill(transfer_id="xfer-7"))
    decoder.step()
    assert decoder.messenger.of_kind("fetch")[0]["transfer"] == "xfer-7"


def test_should_understand_the_prefiller_s_own_answer(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add("cmpl-a-11111111", 20, remote_decode())
    prefiller.step()
    decoder = engine("kv_consumer")
    decoder.add("cmpl-b-22222222", 20, remote_prefill(prefiller.answers["cmpl-a-11111111"]))
    decoder.step()
    fetch = decoder.messenger.of_kind("fetch")[0]
    assert (fetch["transfer"], fetch["prefillers"][0]["port"]) == ("cmpl-a", 14579)


def test_should_name_all_messengers_of_the_prefiller(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 20, remote_prefill(remote_host="10.0.0.1:7100,[::1]:7101", tp_size=2))
    decoder.add("declined-00000000", 20, remote_prefill(remote_host="10.0.0.1:7100,[::1]:7101"))
    decoder.abort("declined-00000000")
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    named = [(messenger["host"], messenger["port"]) for messenger in fetch["prefillers"]]
    assert named == [("10.0.0.1", 7100), ("::1", 7101)]
    (decline,) = decoder.messenger.of_kind("decline")
    assert [(messenger["host"], messenger["port"]) for messenger in decline["prefillers"]] == named


def test_should_send_the_prompt_along_when_only_the_decoder_has_the_request(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 5, {"do_remote_prefill": True, "prefiller": "[::1]:4000"})
    decoder.step()
    fetch = decoder.messenger.of_kind("fetch")[0]
    assert fetch["promptTokenIds"] == [0, 1, 2, 3, 4]
    assert fetch["prefillers"] == [{"host": "::1", "port": 4000, "engineId": ""}]
    assert fetch["transfer"] == REQUEST


def test_should_fail_the_request_when_its_kv_does_not_come(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.fail(REQUEST, "engine gone is no longer at 127.0.0.1:14579, it restarted as another")
    decoder.step()
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert "it restarted as another" in caplog.text
    decoder.step()
    assert decoder.messenger.of_kind("abandon") == []
    assert decoder.at_rest()


def test_should_compute_the_prompt_when_the_policy_is_to_recompute(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", recompute=True)
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.fail(REQUEST)
    decoder.steps(5)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert len(decoder.messenger.of_kind("fetch")) == 1
    assert decoder.at_rest()


@pytest.mark.parametrize("recompute", [False, True])
def test_should_report_failures_by_blocks_to_an_engine_that_asks_in_the_older_form(
    engine: EngineMaker, recompute: bool
) -> None:
    decoder = engine("kv_consumer", legacy_results=True, recompute=recompute)
    decoder.add(REQUEST, 300, remote_prefill())
    decoder.step()
    decoder.messenger.fail(REQUEST)
    decoder.steps(4)
    assert decoder.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert decoder.at_rest()


def test_should_hold_pages_of_an_aborted_request_until_nothing_can_write(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.abort(REQUEST)
    decoder.steps(4)
    assert decoder.messenger.of_kind("abandon") == [{"do": "abandon", "request": REQUEST}]
    assert len(decoder.free_blocks) == decoder.block_count - 6

    decoder.messenger.fail(REQUEST, "cancelled")
    decoder.step()
    decoder.step()
    assert decoder.at_rest()


@pytest.mark.parametrize("recompute", [False, True])
def test_should_end_a_request_at_its_limit_and_hold_its_pages_until_the_proof(
    engine: EngineMaker, recompute: bool
) -> None:
    decoder = engine("kv_consumer", recompute=recompute)
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.steps(6)
    assert decoder.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert not decoder.has_work(), "an engine without requests has nothing to step for"
    assert len(decoder.free_blocks) == decoder.block_count - 6
    assert not set(decoder.free_blocks) & set(decoder.messenger.of_kind("fetch")[0]["groups"][0]["pages"])

    decoder.messenger.fail(REQUEST)
    decoder.step()
    assert decoder.at_rest()


def test_should_use_quarantined_pages_again_with_the_next_request(engine: EngineMaker) -> None:
    """An engine without requests does not step: it hears of the proof with the next one, also one without transfer."""
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.steps(2)
    decoder.messenger.fail(REQUEST)
    assert not decoder.has_work()
    decoder.add("plain", 100, None)
    decoder.step()
    assert decoder.ended["plain"].name == "FINISHED_LENGTH_CAPPED"
    decoder.step()
    assert decoder.at_rest()


def test_should_not_quarantine_pages_whose_proof_is_there(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.messenger.fail(REQUEST)
    decoder.steps(2)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert decoder.at_rest()


def test_should_not_step_for_an_aborted_request_whose_prefiller_stands_still(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.abort(REQUEST)
    decoder.step()
    decoder.messenger.quarantine(REQUEST)
    decoder.steps(2)
    assert not decoder.has_work()
    assert len(decoder.free_blocks) == decoder.block_count - 6
    decoder.messenger.fail(REQUEST)
    decoder.step()
    assert decoder.at_rest()


def test_should_end_an_abort_that_crosses_the_arrival(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.abort(REQUEST)
    decoder.messenger.arrive(REQUEST)
    decoder.steps(2)
    assert decoder.messenger.of_kind("abandon") == [{"do": "abandon", "request": REQUEST}]
    assert decoder.at_rest()


def test_should_free_an_aborted_request_whose_kv_is_there(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.step()
    decoder.abort(REQUEST)
    decoder.steps(2)
    assert decoder.messenger.of_kind("abandon") == []
    assert decoder.at_rest()


def test_should_hand_on_salt_and_priority_of_a_prompt_that_the_prefiller_enqueues(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, {"do_remote_prefill": True, "prefiller": "host:1"})
    decoder.requests[REQUEST].cache_salt = "tenant"
    decoder.requests[REQUEST].priority = -3
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["cacheSalt"], fetch["priority"]) == ("tenant", -3)
    assert fetch["promptDigest"] == prompt_digest(range(700), cache_salt="tenant")


def test_should_fail_the_request_alone_whose_fetch_cannot_be_reported(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 300, remote_prefill())
    decoder.add("other-00000000", 300, remote_prefill())
    worker = decoder.worker._worker
    ask = worker._ask

    def fault(fetch: Any, *arguments: Any, **more: Any) -> bool:
        if fetch.request == decoder.messenger.by_name.number(REQUEST):
            raise OSError("a fault of ours")
        return bool(ask(fetch, *arguments, **more))

    worker._ask = fault
    decoder.steps(2)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert [fetch["request"] for fetch in decoder.messenger.of_kind("fetch")] == ["other-00000000"]
    decoder.messenger.arrive("other-00000000")
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_outlive_a_single_poll_that_fails(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    poll, failures = decoder.messenger.poll, iter(range(2))

    def failing() -> Any:
        if next(failures, None) is not None:
            raise MessengerError("one event is too long")
        return poll()

    decoder.messenger.poll = failing  # type: ignore[method-assign]
    decoder.steps(3)
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert "one event is too long" in caplog.text
    assert decoder.at_rest()


def test_should_count_pages_from_the_first_that_is_missing_when_blocks_are_split(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer", page_tokens=32)
    decoder.add(REQUEST, 300, remote_prefill(), cached=128)
    decoder.step()
    (fetch,) = decoder.messenger.of_kind("fetch")
    assert (fetch["firstToken"], fetch["groups"][0]["pages"]) == (128, [4, 5, 6, 7, 8, 9])


def test_should_forget_a_request_that_is_aborted_before_it_has_blocks(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.abort(REQUEST)
    decoder.step()
    assert [command["do"] for command in decoder.messenger.commands] == ["decline"]
    assert decoder.messenger.of_kind("decline")[0]["transfer"] == TRANSFER
    assert decoder.at_rest()


def test_should_abort_while_decoding(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(), max_tokens=50)
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.steps(5)
    decoder.abort(REQUEST)
    decoder.step()
    assert decoder.messenger.of_kind("abandon") == []
    assert decoder.at_rest()


def test_should_compute_a_preempted_request_itself(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(), max_tokens=5)
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.steps(3)
    decoder.preempt(REQUEST)
    decoder.steps(8)
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert len(decoder.messenger.of_kind("fetch")) == 1
    assert decoder.messenger.fenced == []
    assert decoder.at_rest()


def test_should_report_nothing_twice(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill(), max_tokens=9)
    decoder.step()
    decoder.messenger.arrive(REQUEST)
    decoder.messenger.events *= 3
    decoder.steps(2)
    decoder.messenger._loading.add(REQUEST)
    decoder.messenger.fail(REQUEST)
    decoder.messenger._owed["unknown"] = "prefill"
    decoder.messenger.release("unknown")
    decoder.step()
    assert REQUEST in decoder.requests
    assert "does not wait" in caplog.text
    assert "unknown was released" in caplog.text


def test_should_decline_what_the_engine_wants_to_compute_itself(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.requests[REQUEST].skip_reading_prefix_cache = True
    decoder.steps(4)
    assert [command["do"] for command in decoder.messenger.commands] == ["decline"]
    assert decoder.messenger.of_kind("decline")[0]["transfer"] == TRANSFER
    assert decoder.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert "refused" not in caplog.text
    assert decoder.at_rest()


def test_should_fail_at_once_when_the_messenger_refuses_a_fetch(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    decoder.messenger.refuse.add("fetch")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.steps(2)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    assert decoder.at_rest()


@pytest.mark.parametrize("closes", [True, False])
def test_should_fail_what_waits_when_the_messenger_is_given_up(engine: EngineMaker, closes: bool) -> None:
    decoder = engine("kv_consumer", extra={"on_messenger_lost": "stay"})
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.step()
    decoder.messenger.refuse.update({"poll"} if closes else {"poll", "close"})
    decoder.steps(2)
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    decoder.add("next-00000000", 100, remote_prefill())
    decoder.steps(2)
    assert decoder.ended["next-00000000"].name == "FINISHED_ERROR"
    assert not decoder.has_work()
    assert len(decoder.free_blocks) == decoder.block_count - 6, "a peer that stands still may write to them later"


def test_should_end_a_request_that_cannot_be_taken_in(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    decoder = engine("kv_consumer")
    decoder.add(REQUEST, 700, remote_prefill())
    decoder.scheduler._half._take_in = None  # a fault of ours, whatever it is
    decoder.steps(2)
    assert "update_state_after_alloc failed" in caplog.text
    assert decoder.ended[REQUEST].name == "FINISHED_ERROR"
    decoder.step()
    assert decoder.at_rest()


MALFORMED: dict[str, tuple[Any, str]] = {
    "not an object": ([1], "kv_transfer_params is [1], expected an object"),
    "flag is a text": ({"do_remote_prefill": "yes"}, "do_remote_prefill is 'yes', expected true or false"),
    "both flags": ({"do_remote_prefill": True, "do_remote_decode": True}, "expected one of them"),
    "sent to the wrong side": (remote_decode(), "this engine is a decoder, expected a prefiller"),
    "no host": (remote_prefill(remote_host=None), "remote_host is None, expected the prefiller's host"),
    "host is a number": (remote_prefill(remote_host=5), "remote_host is 5"),
    "no port": (remote_prefill(remote_port=None), "remote_port is None, expected an integer from 1 to 65535"),
    "port is a text": (remote_prefill(remote_port="14579"), "remote_port is '14579'"),
    "port is too large": (remote_prefill(remote_port=70000), "remote_port is 70000"),
    "port is true": (remote_prefill(remote_port=True), "remote_port is True"),
    "engine id is a number": (remote_prefill(remote_engine_id=7), "remote_engine_id is 7, expected a string"),
    "transfer id is a number": (remote_prefill(transfer_id=7), "transfer_id is 7, expected a string of 1 to 512"),
    "transfer id is empty": (remote_prefill(transfer_id=""), "transfer_id is '', expected a string of 1 to 512"),
    "transfer id is long": (remote_prefill(transfer_id="x" * 600), "expected a string of 1 to 512 characters"),
    "hosts without ports": (remote_prefill(remote_host="h,i"), "remote_host is 'h,i', expected a host, or 'host:port'"),
    "another mode": (remote_prefill(transfer_mode="pull"), "transfer_mode is 'pull', expected 'push'"),
    "prefiller without a port": ({"do_remote_prefill": True, "prefiller": "host"}, "expected 'host:port'"),
    "prefiller with a wrong port": ({"do_remote_prefill": True, "prefiller": "host:0"}, "expected 'host:port'"),
    "prefiller is a number": ({"do_remote_prefill": True, "prefiller": 3}, "prefiller is 3, expected 'host:port'"),
    "an empty list of prefillers": ({"do_remote_prefill": True, "prefiller": []}, "or a list of 1 to 8 such strings"),
    "a list with a number": ({"do_remote_prefill": True, "prefiller": ["a:1", 3]}, "expected 'host:port'"),
    "too many prefillers": ({"do_remote_prefill": True, "prefiller": ["a:1"] * 9}, "or a list of 1 to 8 such strings"),
    "prefiller and remote_host": (remote_prefill(prefiller="host:1"), "name both 'prefiller' and 'remote_host'"),
}


@pytest.mark.parametrize("case", list(MALFORMED))
@pytest.mark.parametrize("recompute", [False, True])
def test_should_refuse_malformed_parameters_with_one_sentence_and_go_on(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, case: str, recompute: bool
) -> None:
    params, sentence = MALFORMED[case]
    decoder = engine("kv_consumer", recompute=recompute)
    decoder.add(REQUEST, 300, params)
    decoder.steps(5)
    assert decoder.ended[REQUEST].name == ("FINISHED_LENGTH_CAPPED" if recompute else "FINISHED_ERROR")
    assert [sentence in record.getMessage() for record in caplog.records if "is refused" in record.message] == [True]
    assert decoder.messenger.commands == []
    assert decoder.at_rest()


def test_should_refuse_a_decode_on_a_prefiller(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 300, remote_prefill())
    prefiller.steps(2)
    assert "this engine is a prefiller, expected a decoder" in caplog.text
    assert prefiller.ended[REQUEST].name == "FINISHED_ERROR"
    assert prefiller.answers[REQUEST] is None


def test_should_do_both_in_one_engine(engine: EngineMaker) -> None:
    both = engine("kv_both")
    both.add("send-00000000", 300, remote_decode())
    both.add("fetch-11111111", 300, remote_prefill(transfer_id="other"))
    both.steps(3)
    both.messenger.release("send-00000000")
    both.messenger.arrive("fetch-11111111")
    both.steps(3)
    assert both.at_rest()


def test_should_report_figures_as_gains(engine: EngineMaker) -> None:
    decoder = engine("kv_consumer")
    seen: list[dict[str, Any]] = []
    decoder.worker.get_kv_connector_stats, original = (
        (lambda: seen.append(stats.data) if (stats := original()) is not None else None),
        decoder.worker.get_kv_connector_stats,
    )
    for index in range(2):
        request = f"r{index}-00000000"
        decoder.add(request, 10, remote_prefill())
        decoder.step()
        decoder.messenger.totals["kv_messenger_fetches_started"] += 1
        decoder.messenger.arrive(request)
        decoder.steps(3)
    gains = [data["counters"].get("kv_messenger_fetches_started", 0) for data in seen]
    assert sum(gains) == 2
    assert max(gains) == 1
