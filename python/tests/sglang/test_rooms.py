"""Rooms that prompts share: what names a prompt, and what each of them gets. Real messengers, one process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def pair(sglang_plugins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair for all tests: it starts a JVM."""
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):  # importing SGLang warns of what the machine lacks
        from one_process import Pair

        opened = Pair(tmp_path_factory.mktemp("model"))
    opened.prefiller.scribble(1)
    opened.decoder.scribble(2)
    yield opened
    opened.close()


def test_should_name_the_prompt_of_a_request_of_sglangs_on_both_sides(pair: Pair) -> None:
    from array import array

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kv_connector.naming.prompt_digest import prompt_digest
    from kv_connector.sglang.hooks import name_receiver, name_sender

    request = Req("r", "", array("q", [5, 6, 7]), SamplingParams())
    queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=None)
    name_sender(queue, request, 4)
    receiver = pair.receiver(pair.next_room())
    request.kv = SimpleNamespace(req_pool_idx=3)
    name_receiver(queue, SimpleNamespace(kv_receiver=receiver, req=request), [1], 16)
    assert receiver.request_row == 3
    assert pair.prefiller.endpoint.take_prompt_digest() == receiver.prompt_digest == prompt_digest([5, 6, 7])
    assert pair.prefiller.endpoint.take_prompt_digest() == "", "the next sender's is its own"
    receiver.abort()


class HasLoaded:
    """SGLang's of adapters, as far as it says what it has loaded."""

    def __init__(self, loaded: dict[str, object]) -> None:
        self.lora_refs = loaded


def test_should_name_adapters_and_weights_as_sglang_was_given_them(pair: Pair, tmp_path: Path) -> None:
    from array import array

    from sglang.srt.lora.lora_registry import LoRARef
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.runtime_context import get_context
    from sglang.srt.sampling.sampling_params import SamplingParams
    from test_adapter_digest import adapter

    from kv_connector.naming.adapter_digest import adapter_identity
    from kv_connector.naming.prompt_digest import prompt_digest
    from kv_connector.sglang.hooks import name_sender

    known = LoRARef(lora_name="sql", lora_path=str(adapter(tmp_path / "sql")))
    manager = HasLoaded({known.lora_id: known})
    worker = SimpleNamespace(model_runner=SimpleNamespace(lora_manager=manager))
    queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=SimpleNamespace(tp_worker=worker))
    request = Req("r", "", array("q", [5, 6, 7]), SamplingParams(), lora_id=known.lora_id)
    identity = adapter_identity("sql", known.lora_path or "")
    name_sender(queue, request, 4)
    assert pair.prefiller.endpoint.take_prompt_digest() == prompt_digest([5, 6, 7], lora=identity)
    get_context().override("a test's", weight_version="step 7")
    try:
        name_sender(queue, request, 4)
    finally:
        get_context().override("a test's", weight_version="default")
    named = pair.prefiller.endpoint.take_prompt_digest()
    assert named == prompt_digest([5, 6, 7], lora=identity, weights="step 7")


def test_should_name_images_by_sglangs_own_hashes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from array import array

    import torch
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem, MultimodalInputs, Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kv_connector.sglang.hooks import name_sender

    queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=None)

    def named(pixels: torch.Tensor) -> str:
        item = MultimodalDataItem(modality=Modality.IMAGE, feature=pixels, offsets=[(1, 2)])
        item.set_pad_value()
        request = Req("r", "", array("q", [5, 6, 7]), SamplingParams())
        request.multimodal_inputs = MultimodalInputs(mm_items=[item])
        name_sender(queue, request, 4)
        return str(pair.prefiller.endpoint.take_prompt_digest())

    one, other = torch.zeros(4, 3), torch.ones(4, 3)
    assert named(one) == named(one.clone()) != named(other)
    monkeypatch.setenv("SGLANG_MM_SKIP_COMPUTE_HASH", "1")
    assert named(one) == named(one), "SGLang's hashes are random numbers then"


def test_should_name_the_prompt_of_a_receiver_that_ends_before_it_asks(pair: Pair) -> None:
    from array import array

    from one_process import until
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kv_connector.sglang.hooks import name_new_receiver, name_sender

    request = Req("r", "", array("q", [5, 6, 7]), SamplingParams())
    room = pair.next_room()
    queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=None)
    name_sender(queue, request)
    sender, receiver = pair.sender(room), pair.receiver(room)
    assert name_new_receiver(SimpleNamespace(kv_receiver=receiver, req=request), queue) is None
    until(lambda: receiver.poll() == KVPoll.WaitingForInput, "the decoder has found the prefiller")
    receiver.abort()
    until(lambda: sender.poll() == KVPoll.Failed, "the prefiller knows that its prompt is not wanted")
    with pytest.raises(Exception, match="declined the transfer"):
        sender.failure_exception()
    pair.assert_nothing_held()


def test_should_serve_two_prompts_in_one_room(pair: Pair) -> None:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    senders, receivers = {}, {}
    for digest in ("aa" * 16, "bb" * 16):
        pair.prefiller.endpoint.next_prompt_digest = digest
        senders[digest] = pair.sender(room)
    for digest, target, slot in (("bb" * 16, 9, 4), ("aa" * 16, 20, 1)):
        receivers[digest] = pair.receiver(room)
        receivers[digest].prompt_digest = digest
        receivers[digest].send_metadata(pages(target), slot, decode_prefix_len=0)
    for digest, source in (("aa" * 16, 3), ("bb" * 16, 5)):
        wait_for(senders[digest], KVPoll.WaitingForInput)
        senders[digest].init(1, source)
        pair.write_metadata(source, room, source)
        senders[digest].send(pages(source), [])
        wait_for(senders[digest], KVPoll.Success)
        wait_for(receivers[digest], KVPoll.Success)
        senders[digest].clear()
        receivers[digest].clear()

    pair.assert_equal_pages([3, 5], [20, 9])
    assert [int(pair.decoder.metadata.output_ids[slot, 0]) for slot in (1, 4)] == [3, 5]
    pair.assert_nothing_held()


ODD_ROOMS = [
    *(None, True, False, 0, -1, 1 << 64, 1.0, 1.5, float("nan"), "", "7", "x" * 1_000_000, "a\nb", "half \ud83d"),
    *([1, 2], [], [[1]], {"room": 1}, (1,)),
]


@pytest.mark.parametrize("room", ODD_ROOMS, ids=lambda room: f"{type(room).__name__}-{str(room)[:10]!a}")
def test_should_fail_the_request_alone_whose_room_is_none(pair: Pair, room: object) -> None:
    """SGLang passes on what the client sent, to code that runs on the scheduler's thread."""
    from array import array

    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from kv_connector.sglang.hooks import name_new_receiver, name_sender

    request = Req("r", "", array("q", [5, 6, 7]), SamplingParams(), bootstrap_room=room)  # type: ignore[arg-type]
    queue = SimpleNamespace(kv_manager=pair.prefiller.endpoint, scheduler=None)
    name_sender(queue, request)
    sender, receiver = pair.sender(room), pair.new_receiver(room)  # type: ignore[arg-type]
    name_new_receiver(SimpleNamespace(kv_receiver=receiver, req=request), queue)
    assert request.bootstrap_room == 0, "SGLang computes with it before it looks at the receiver"
    receiver.init(0)
    for side in (sender, receiver):
        assert side.poll() == KVPoll.Failed
        with pytest.raises(
            Exception, match=r"bootstrap_room is .*, expected an integer from 1 to 18446744073709551615"
        ):
            side.failure_exception()
        side.abort()
        side.clear()
        assert side.poll() == KVPoll.Failed
    assert pair.prefiller.endpoint.take_prompt_digest() == ""
    pair.assert_nothing_held()


@pytest.mark.parametrize("room", [1, 1 << 31, (1 << 63) + 1, (1 << 64) - 1])
def test_should_serve_any_room_that_a_word_has(pair: Pair, room: int) -> None:
    from one_process import pages, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    sender, receiver = pair.sender(room), pair.receiver(room)
    receiver.send_metadata(pages(9), 4, decode_prefix_len=0)
    wait_for(sender, KVPoll.WaitingForInput)
    sender.init(1, 3)
    pair.write_metadata(3, room, 3)
    sender.send(pages(3), [])
    for side in (sender, receiver):
        wait_for(side, KVPoll.Success)
        side.clear()
    pair.assert_nothing_held()


@pytest.mark.parametrize("address", ["", "h", "h:0", "h:x", "a b:1", "a/b:1", f"{'h' * 300}:1", "a\nb:1", "None:None"])
def test_should_fail_the_request_alone_whose_prefiller_is_no_address(pair: Pair, address: str) -> None:
    from one_process import backend_class
    from sglang.srt.disaggregation.base.conn import KVPoll

    receiver = backend_class("receiver")(pair.decoder.endpoint, address, pair.next_room())
    receiver.init(0)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match=r"bootstrap_(host|port).*expected"):
        receiver.failure_exception()
    receiver.clear()
    pair.assert_nothing_held()


@pytest.mark.parametrize("rank", [True, -1, 1.5, "0", [0], {}, 1 << 40])
def test_should_fail_the_request_alone_whose_data_parallel_rank_is_none(pair: Pair, rank: object) -> None:
    from sglang.srt.disaggregation.base.conn import KVPoll

    receiver = pair.new_receiver(pair.next_room())
    receiver.init(rank)
    assert receiver.poll() == KVPoll.Failed
    with pytest.raises(Exception, match=r"data-parallel rank is .*, expected an integer"):
        receiver.failure_exception()
    pair.assert_nothing_held()
