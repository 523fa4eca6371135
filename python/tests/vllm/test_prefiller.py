from __future__ import annotations

import dataclasses
import re
import sys
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import LAYERS, remote_decode, remote_prefill
from simulated_messenger import SimulatedMessenger

from kv_connector.naming.prompt_digest import prompt_digest

REQUEST = "cmpl-___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:2_0123456789abcdef0123456789abcdef-0-89abcdef"
TRANSFER = REQUEST.removesuffix("-89abcdef")


def ranges(messenger: SimulatedMessenger, request: str = REQUEST) -> list[tuple[int, int, int, int]]:
    return [
        (chunk["cachedTokens"], chunk["firstToken"], chunk["endToken"], len(chunk["groups"][0]["pages"]))
        for chunk in messenger.chunks_of(request)
    ]


def test_should_report_every_chunk_before_its_forward_pass(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.steps(3)

    assert ranges(prefiller.messenger) == [(0, 0, 256, 2), (0, 256, 512, 2), (0, 512, 700, 2)]
    assert {chunk["transfer"] for chunk in prefiller.messenger.chunks_of(REQUEST)} == {TRANSFER}
    assert [command["do"] for command in prefiller.messenger.commands] == ["announce", *["step", "stepEnded"] * 3]
    assert prefiller.messenger.counter_starts == [41, 45, 49]
    assert prefiller.messenger.count == 41 + 3 * len(LAYERS)


def test_should_answer_with_what_the_router_needs_to_send_both_legs_at_once(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 200, remote_decode())
    prefiller.step()

    assert prefiller.answers[REQUEST] == {
        "transfer_mode": "push",
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-kv_producer",
        "remote_host": "127.0.0.1",
        "remote_port": 14579,
        "remote_request_id": REQUEST,
        "transfer_id": TRANSFER,
        "remote_prompt_tokens": 200,
        "remote_prompt_digest": prefiller.messenger.of_kind("announce")[0]["promptDigest"],
        "tp_size": 1,
        "pp_size": 1,
    }


def test_should_not_leave_a_decoder_to_compute_in_silence_what_cannot_be_fetched(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller = engine("kv_producer")
    prefiller.own_scheduler._half.set_addresses({})
    prefiller.add(REQUEST, 200, remote_decode())
    prefiller.step()
    answer = prefiller.answers[REQUEST]
    assert answer["transfer_id"] == TRANSFER
    assert "cannot be fetched: no worker has reported an address" in caplog.text

    decoder = engine("kv_consumer")
    decoder.add("cmpl-b-22222222", 200, remote_prefill(answer, remote_host=answer.get("remote_host")))
    decoder.steps(2)
    assert decoder.ended["cmpl-b-22222222"].name == "FINISHED_ERROR"
    assert "remote_host is None, expected the prefiller's host" in caplog.text


def test_should_keep_blocks_until_the_messenger_releases_them(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 200, remote_decode())
    prefiller.step()
    assert REQUEST in prefiller.ended
    assert prefiller.has_work()
    prefiller.steps(5)
    assert len(prefiller.free_blocks) == prefiller.block_count - 2
    assert prefiller.messenger.of_kind("prefillEnded") == [
        {"do": "prefillEnded", "request": REQUEST, "outcome": "finished"}
    ]

    prefiller.messenger.release(REQUEST)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_take_pages_of_the_prefix_cache_as_written_by_the_pass_that_uses_them(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode(), cached=384)
    prefiller.steps(2)

    assert ranges(prefiller.messenger) == [(0, 0, 640, 5), (0, 640, 700, 1)]


def test_should_send_a_prompt_of_one_token(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 1, remote_decode())
    prefiller.step()

    assert ranges(prefiller.messenger) == [(0, 0, 1, 1)]


def test_should_report_nothing_of_steps_that_only_decode(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 130, remote_decode(), max_tokens=4)
    prefiller.step()
    count = len(prefiller.messenger.commands)
    assert not prefiller.worker.has_connector_metadata()
    prefiller.steps(2)
    assert len(prefiller.messenger.commands) == count
    assert prefiller.messenger.count == 41 + len(LAYERS)


def test_should_leave_requests_without_a_transfer_alone(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add("plain", 300, None)
    prefiller.add("none", 300, {"do_remote_decode": False})
    prefiller.steps(6)
    assert prefiller.messenger.commands == []
    assert prefiller.at_rest()


def test_should_number_pages_as_the_kernel_does_when_blocks_are_split(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", page_tokens=32)
    prefiller.add(REQUEST, 300, remote_decode())
    prefiller.steps(2)
    first, last = prefiller.messenger.chunks_of(REQUEST)
    assert first["groups"][0]["pages"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert last["groups"][0]["pages"] == [8, 9, 10, 11]


def test_should_use_the_transfer_id_that_the_router_gives(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 20, remote_decode(transfer_id="xfer-1"))
    prefiller.step()
    assert prefiller.messenger.chunks_of(REQUEST)[0]["transfer"] == "xfer-1"
    assert prefiller.answers[REQUEST]["transfer_id"] == "xfer-1"


def test_should_send_one_choice_and_answer_with_each(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=512)
    choices = [f"{choice}_chatcmpl-a-11111111" for choice in range(3)]
    for choice in choices:
        prefiller.add(choice, 100, remote_decode())
    prefiller.steps(2)
    assert [chunk["request"] for step in prefiller.messenger.of_kind("step") for chunk in step["chunks"]] == choices[:1]
    answers = [prefiller.answers[choice] for choice in choices]
    assert [answer["transfer_id"] for answer in answers] == ["chatcmpl-a"] * 3
    assert len(prefiller.free_blocks) == prefiller.block_count - 1
    prefiller.messenger.release(choices[0])
    prefiller.step()
    assert prefiller.at_rest()


@pytest.mark.parametrize("steps", [1, 2])
def test_should_hold_blocks_of_an_aborted_prefill(engine: EngineMaker, steps: int) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.steps(steps)
    prefiller.abort(REQUEST)
    prefiller.step()
    assert prefiller.answers[REQUEST] is None
    assert prefiller.messenger.of_kind("prefillEnded")[0]["outcome"] == "aborted"
    assert len(prefiller.free_blocks) < prefiller.block_count

    prefiller.messenger.release(REQUEST)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_notify_the_decoder_of_a_request_that_ends_before_the_next_step(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.abort(REQUEST)
    prefiller.step()
    assert [command["do"] for command in prefiller.messenger.commands] == ["announce", "prefillEnded"]
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_announce_a_queued_request_and_notify_its_decoder_when_it_ends_there(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=0)
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.steps(3)
    digest = prompt_digest(range(700))
    announce = {"do": "announce", "request": REQUEST, "transfer": TRANSFER, "promptDigest": digest}
    assert prefiller.messenger.commands == [announce]

    prefiller.abort(REQUEST)
    prefiller.step()
    assert prefiller.messenger.commands[1:] == [{"do": "prefillEnded", "request": REQUEST, "outcome": "aborted"}]
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_notify_the_decoder_of_a_request_that_is_aborted_after_a_preemption(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.chunk_tokens = 0
    prefiller.step()
    prefiller.abort(REQUEST)
    prefiller.step()
    kinds = [command["do"] for command in prefiller.messenger.commands]
    assert kinds == ["announce", "step", "stepEnded", "prefillEnded"]
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_send_no_output_of_a_request_that_was_preempted_after_its_first_token(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=1024)
    prefiller.add(REQUEST, 200, remote_decode(), max_tokens=3)
    prefiller.step()
    assert prefiller.requests[REQUEST].output_tokens == 1
    prefiller.preempt(REQUEST)
    prefiller.steps(4)
    assert ranges(prefiller.messenger) == [(0, 0, 200, 2)] * 2
    assert prefiller.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_send_again_a_prompt_that_is_cached_to_its_end_when_its_request_is_resumed(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=1024)
    prefiller.add(REQUEST, 256, remote_decode(), max_tokens=3)
    prefiller.step()
    prefiller.preempt(REQUEST, cached_when_resumed=256)  # behind it comes what was put out before
    prefiller.steps(4)
    assert ranges(prefiller.messenger) == [(0, 0, 256, 2)] * 2
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["finished"]


def test_should_compute_the_prompt_again_when_a_request_of_windows_is_resumed(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=1024)
    half = prefiller.own_scheduler._half
    half._groups = half._chunks._groups = [dataclasses.replace(half._groups[0], window_tokens=64)]
    prefiller.add(REQUEST, 256, remote_decode(), max_tokens=3)
    prefiller.step()
    prefiller.preempt(REQUEST, cached_when_resumed=256)
    request = prefiller.requests[REQUEST]
    prefiller.step()
    assert request.skip_reading_prefix_cache, "a hit on decoded tokens lacks the last window of the prompt"
    assert ranges(prefiller.messenger) == [(0, 0, 256, 2)] * 2


def test_should_notify_the_decoder_of_a_request_whose_chunk_cannot_be_planned(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.scheduler._half._prefills[REQUEST].sent_tokens -= 1  # a fault of ours, whatever it is
    prefiller.steps(3)
    assert "its chunk could not be planned" in caplog.text
    assert len(ranges(prefiller.messenger)) == 1
    assert prefiller.messenger.of_kind("prefillEnded") == [
        {"do": "prefillEnded", "request": REQUEST, "outcome": "failed"}
    ]
    assert prefiller.ended[REQUEST].name == "FINISHED_LENGTH_CAPPED"
    assert len(prefiller.free_blocks) < prefiller.block_count, "something may still read them"
    prefiller.messenger.release(REQUEST)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_notify_the_decoder_at_once_when_a_chunk_cannot_be_planned(engine: EngineMaker) -> None:
    """The engine may go on with the request for minutes: the decoder would wait for its own limit."""
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode(), max_tokens=50)
    prefiller.step()
    prefiller.scheduler._half._prefills[REQUEST].sent_tokens -= 1
    prefiller.step()
    assert REQUEST in prefiller.requests, "its request goes on"
    assert [end["outcome"] for end in prefiller.messenger.of_kind("prefillEnded")] == ["failed"]


def test_should_send_the_blocks_that_a_request_has_after_it_was_resumed(engine: EngineMaker) -> None:
    """vLLM resets running requests also without naming them as preempted: then the whole table is news enough."""
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    before = list(prefiller.requests[REQUEST].blocks)
    prefiller.preempt(REQUEST)
    prefiller.preempted.clear()
    prefiller.pool.free.reverse()
    prefiller.messenger._prefills.clear()
    prefiller.step()
    after = prefiller.requests[REQUEST].blocks
    assert set(before).isdisjoint(after[: len(before)])
    assert prefiller.messenger.chunks_of(REQUEST)[-1]["groups"] == [{"firstPage": 0, "pages": after}]


def test_should_have_layers_sent_early_once_each_messenger_has_counted_right(engine: EngineMaker) -> None:
    """Otherwise a pair on GPUs would send each step when it is over, for good."""
    prefiller = engine("kv_producer")
    half = prefiller.own_scheduler._half
    news = prefiller.release.metadata.WorkerNews
    assert not half.build(prefiller._schedule()).layers_are_right
    half.reported((), (), news(counted_right=1))
    assert half.build(prefiller._schedule()).layers_are_right


def test_should_end_the_request_alone_whose_command_fails(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefiller = engine("kv_producer")
    names = [f"request-{index}-0000000{index}" for index in range(2)]
    for name in names:
        prefiller.add(name, 100, remote_decode())
    module = sys.modules[type(prefiller.worker._worker._prefills).__module__]
    chunk_of_step = module.chunk_of_step

    def fault(chunk: Any, groups: Any) -> Any:
        if chunk.request == prefiller.messenger.by_name.number(names[0]):
            raise OSError("a fault of ours")
        return chunk_of_step(chunk, groups)

    monkeypatch.setattr(module, "chunk_of_step", fault)
    prefiller.steps(2)
    assert "a fault of ours" in caplog.text
    assert [(end["request"], end["outcome"]) for end in prefiller.messenger.of_kind("prefillEnded")] == [
        (names[0], "failed"),
        (names[1], "finished"),
    ]
    for request in prefiller.messenger.owes():
        prefiller.messenger.release(request)
    prefiller.steps(2)
    assert prefiller.at_rest()


def test_should_begin_prompts_whether_or_not_a_decoder_has_pages_for_them(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", block_count=17, chunk_tokens=4096)
    names = [f"request-{index}-0000000{index}" for index in range(4)]
    for name in names:
        prefiller.add(name, 500, remote_decode())
    prefiller.steps(2)
    assert set(prefiller.ended) == set(names), "a router may send the decoder's legs after all of a list have ended"


def test_should_fence_a_preempted_request_and_start_it_again(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST, cached_when_resumed=128)
    prefiller.messenger.unfenced.add(REQUEST)
    prefiller.steps(3)

    assert prefiller.messenger.fenced == [[REQUEST], [REQUEST]]
    assert ranges(prefiller.messenger) == [(0, 0, 256, 2), (0, 0, 384, 3), (0, 384, 640, 2), (0, 640, 700, 1)]
    prefiller.step()
    prefiller.messenger.release(REQUEST)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_end_a_request_that_is_aborted_while_preempted(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.step()
    prefiller.preempt(REQUEST)
    prefiller.abort(REQUEST)
    prefiller.step()
    assert prefiller.messenger.fenced == [[REQUEST]]
    for request in prefiller.messenger.owes():
        prefiller.messenger.release(request)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_stop_counting_when_a_layer_fires_out_of_order(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.hooked_layers = [LAYERS[0], LAYERS[2], LAYERS[1], LAYERS[3]]
    prefiller.add(REQUEST, 100, remote_decode())
    prefiller.step()
    assert prefiller.messenger.count == 42
    assert prefiller.messenger.of_kind("stepEnded")


def test_should_not_count_layers_that_share_the_kv_of_others(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.hooked_layers = [LAYERS[0], "model.layers.9.self_attn.attn", *LAYERS[1:]]
    prefiller.add(REQUEST, 100, remote_decode())
    prefiller.step()
    assert prefiller.messenger.count == 41 + len(LAYERS)


def test_should_send_nothing_of_a_forward_pass_that_failed(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.forward_fails = True
    with pytest.raises(RuntimeError, match="the forward pass failed"):
        prefiller.step()
    assert prefiller.messenger.of_kind("stepEnded") == []
    assert prefiller.messenger.of_kind("stepFailed") == [{"do": "stepFailed", "step": 1}]
    assert prefiller.messenger.of_kind("prefillEnded") == [
        {"do": "prefillEnded", "request": REQUEST, "outcome": "failed"}
    ]


def test_should_go_on_when_the_messenger_refuses_a_step(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer")
    prefiller.add(REQUEST, 700, remote_decode())
    prefiller.messenger.refuse.add("step")
    prefiller.step()
    prefiller.messenger.refuse.clear()
    prefiller.steps(3)
    assert prefiller.messenger.chunks_of(REQUEST) == []
    assert prefiller.messenger.of_kind("prefillEnded")[0]["outcome"] == "failed"
    assert len(prefiller.free_blocks) < prefiller.block_count
    prefiller.messenger.release(REQUEST)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_serve_several_requests_in_one_step(engine: EngineMaker) -> None:
    prefiller = engine("kv_producer", chunk_tokens=512)
    ids = [f"request-{index}-0000000{index}" for index in range(4)]
    for index, request in enumerate(ids):
        prefiller.add(request, 100 + 100 * index, remote_decode())
    prefiller.steps(4)
    steps = prefiller.messenger.of_kind("step")
    assert [chunk["request"] for chunk in steps[0]["chunks"]] == ids[:3]
    for request in prefiller.messenger.owes():
        prefiller.messenger.release(request)
    prefiller.step()
    assert prefiller.at_rest()


def test_should_write_timelines_and_log_lines(engine: EngineMaker, caplog: pytest.LogCaptureFixture) -> None:
    prefiller = engine("kv_producer")
    prefiller.messenger.say("warning", "it rains")
    prefiller.messenger.draw(TRANSFER, lastLeftNs=17)
    with caplog.at_level("INFO"):
        prefiller.step()
    assert "it rains" in caplog.text
    assert re.search(rf'kv_messenger timeline {{"transfer":"{re.escape(TRANSFER)}","lastLeftNs":17}}', caplog.text)
