"""What a client leaves out or misspells reaches SGLang's own code before a receiver or sender: no server ends."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks are in place, in a server of this backend."""
    from sglang.srt import runtime_context

    from kv_connector.sglang.registration import hook_scheduler

    hook_scheduler()
    chosen = SimpleNamespace(disaggregation_transfer_backend="kv_messenger")
    monkeypatch.setattr(runtime_context, "get_disagg", lambda: chosen)
    monkeypatch.setattr(runtime_context, "get_serving", lambda: SimpleNamespace(weight_version="default"))


def request_of(**fields: Any) -> Any:
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    return Req("r", "", array("q", [5, 6, 7]), SamplingParams(), **fields)


def decoder_queue() -> Any:
    """SGLang's own, as far as a request enters it."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue
    from sglang.srt.disaggregation.utils import TransferBackend

    queue: Any = DecodePreallocQueue.__new__(DecodePreallocQueue)
    queue.queue, queue.pending_reqs, queue.retracted_queue = [], [], []
    queue.transfer_backend = TransferBackend("kv_messenger")
    queue.scheduler = SimpleNamespace(tp_worker=None)
    queue.kv_manager = SimpleNamespace(prefill_info_table={})
    queue.metadata_buffers = SimpleNamespace(output_top_logprobs_val=SimpleNamespace(shape=(4, 128)))
    queue._check_if_req_exceed_kv_capacity = lambda _request: False
    return queue


@pytest.mark.parametrize("host", [None, ["h"], [None], 7, {"h": 1}, b"h", ""], ids=repr)
def test_should_fail_the_request_alone_that_names_no_prefiller(ours: None, host: object) -> None:
    assert ours is None
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.decode import _bootstrap_addr

    queue, request = decoder_queue(), request_of(bootstrap_host=host, bootstrap_port=8998, bootstrap_room=7)
    queue.add(request)
    (waiting,) = queue.queue
    assert waiting.kv_receiver.poll() == KVPoll.Failed
    assert isinstance(_bootstrap_addr(request), str), "SGLang asks for it again, while the request waits"
    with pytest.raises(Exception, match=r"bootstrap_host and bootstrap_port are .*, expected the prefiller's host"):
        waiting.kv_receiver.failure_exception()


def controller() -> Any:
    """SGLang's own of two ranks, as far as it routes; its ``asked`` has a list of requests for each rank."""
    from sglang.srt.managers.data_parallel_controller import DataParallelController

    one: Any = DataParallelController.__new__(DataParallelController)
    one.asked = ([], [])
    one.workers = [SimpleNamespace(asked=asked) for asked in one.asked]
    one.round_robin_scheduler = lambda request: one.asked[0].append(request)
    return one


@pytest.mark.parametrize("room", [None, [1, 2], "7", 1.5, {"room": 1}], ids=repr)
def test_should_route_a_request_without_a_room_to_a_rank_that_refuses_it(ours: None, room: object) -> None:
    """The controller's loop has no guard: what is raised in it ends the server."""
    assert ours is None
    one, request = controller(), SimpleNamespace(bootstrap_room=room, routed_dp_rank=None)
    one.follow_bootstrap_room_scheduler(request)
    assert one.asked[0] == [request]


def test_should_leave_rooms_to_sglang(ours: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ours is None
    from sglang.srt.managers import data_parallel_controller

    monkeypatch.setattr(data_parallel_controller, "sock_send", lambda worker, request: worker.asked.append(request))
    one = controller()
    for room in (0, 4, 7):
        one.follow_bootstrap_room_scheduler(SimpleNamespace(bootstrap_room=room, routed_dp_rank=None))
    assert [[each.bootstrap_room for each in asked] for asked in one.asked] == [[0, 4], [7]]


def test_should_fail_the_request_alone_of_whose_prompt_the_decoder_has_more_than_there_is(tmp_path: Path) -> None:
    """Prompts of images or vectors may have no digest: then two legs of one room can differ, also in their lengths."""
    with warnings.catch_warnings(action="ignore"):
        from one_process import publish_arguments
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang.exchange import Outgoing
    from kv_connector.sglang.page_numbers import PageNumbers
    from kv_connector.sglang.sender import Sender

    publish_arguments(tmp_path, 1)
    out = Outgoing("7#1", "7", granted=SimpleNamespace(first_token=64))  # type: ignore[arg-type]
    endpoint = SimpleNamespace(
        kv_args=SimpleNamespace(page_size=16),
        page_numbers=PageNumbers(None),
        exchange=SimpleNamespace(announce=lambda *_given: out, abort=lambda of, why: setattr(of, "failure", why)),
        take_prompt_tokens=lambda: 20,
        take_prompt_digest=lambda: "",
        take_pull=lambda: None,
        attn_cp_size=1,
        report_stages=lambda *_given: None,
        forget_room=lambda _room: None,
        place_room=lambda *_given: "",
    )
    sender = Sender(endpoint, "h:1", 7)  # type: ignore[arg-type]
    sender.init(-3, 2)  # as SGLang counts 20 tokens of which 64 are cached
    assert sender.poll() == KVPoll.Failed
    assert out.failure.startswith("the decoder has 64 tokens of room 7 in its cache, expected at most the 20")
    sender.send(SimpleNamespace(tolist=list), [])
    assert sender.poll() == KVPoll.Failed
