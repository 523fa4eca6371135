"""Page numbers that are still on the device when SGLang gives pages, or queues a pass: the scheduler waits for none.

The copies are stand-ins: their numbers cannot be read before their event is over. The messengers are real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpu_pair import GpuPair
    from one_process import Pair

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

NAMES = ("layer.0.k", "layer.0.v")


class Stream:
    """A device's stream, on which copies have run up to now if ``is_idle``."""

    is_idle = False


class Event:
    """An event of that stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def record(self, _stream: Any = None) -> None:
        """It is the only stream."""

    def query(self) -> bool:
        return self._stream.is_idle


class Copied:
    """A tensor on the host whose copy from the device is queued."""

    def __init__(self, stream: Stream, shape: Any = ()) -> None:
        self._stream, self.shape = stream, shape
        self._numbers: Any = None

    def copy_(self, numbers: Any, non_blocking: bool) -> Copied:
        assert non_blocking
        self._numbers = numbers
        return self

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, positions: slice) -> Any:
        assert self._stream.is_idle, "read before it was copied"
        return self._numbers[positions]

    def tolist(self) -> list[int]:
        return list(self[:].tolist())


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The scheduler's, with what this backend and SGLang take from torch for it."""
    from sglang.srt.disaggregation import prefill

    from kv_connector.sglang.device_reads import NumberCopies

    made = Stream()

    def empty(shape: Any, *, pin_memory: bool, **_type_and_place: Any) -> Copied:
        assert pin_memory
        return Copied(made, shape)

    cuda = SimpleNamespace(Event=lambda: Event(made), current_stream=lambda: None)
    monkeypatch.setattr(prefill, "torch", SimpleNamespace(empty=empty, cuda=cuda))
    monkeypatch.setattr(NumberCopies, "add", lambda _, numbers: Copied(made).copy_(numbers, non_blocking=True))
    return made


def scheduler_of(endpoint: Any, stream: Stream, pages: list[int]) -> Any:
    """As much of SGLang's scheduler as gives pages; its table has one request, in these pages."""
    import torch
    from one_process import PAGE_TOKENS

    table = (torch.tensor(pages).repeat_interleave(PAGE_TOKENS) * PAGE_TOKENS).unsqueeze(0)
    table += torch.arange(table.shape[1]) % PAGE_TOKENS
    return SimpleNamespace(
        disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=endpoint, pp_rank=0, scheduler=None),
        enable_overlap=True,
        device="cuda",
        device_module=SimpleNamespace(
            Event=lambda: Event(stream), current_stream=lambda: None, stream=lambda _: contextlib.nullcontext()
        ),
        forward_stream=None,
        tree_cache=SimpleNamespace(supports_prefix_sharing=lambda: False),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        token_to_kv_pool_allocator=SimpleNamespace(
            page_size=PAGE_TOKENS, translate_kv_indices_for_transfer=lambda indices: indices
        ),
        enable_staging=False,
        disagg_metadata_buffers=SimpleNamespace(set_buf=lambda _: None),
        disagg_prefill_pending_chunk_rids=set(),
    )


def request_of(sender: Any, page_count: int, end_page: int) -> Any:
    """SGLang's, of a prompt of whole pages whose next pass ends at this position."""
    from one_process import PAGE_TOKENS

    return SimpleNamespace(
        rid="a request",
        start_send_idx=0,
        origin_input_ids=range(page_count * PAGE_TOKENS),
        extend_end=end_page * PAGE_TOKENS,
        disagg_decode_prefix_len=0,
        kv=SimpleNamespace(req_pool_idx=0),
        disagg_kv_sender=sender,
        pending_bootstrap=False,
    )


def give(scheduler: Any, request: Any, *, last: bool) -> None:
    """By SGLang's own function."""
    from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin

    SchedulerDisaggregationPrefillMixin._send_kv_chunk(scheduler, request, last_chunk=last)


def test_should_take_pages_that_sglang_gives_while_they_are_copied_from_the_device(
    pair: Pair, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang.srt.disaggregation import prefill
    from sglang.srt.disaggregation.base.conn import KVPoll

    endpoint = pair.prefiller.endpoint
    monkeypatch.setattr(endpoint.reads, "on_device", True)
    monkeypatch.setattr(prefill, "kv_to_page_indices", lambda *_: pytest.fail("the scheduler waits for the device"))
    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2, 11], slot=4)
    sender.init(3, 2)
    pair.write_metadata(2, room, 123)
    scheduler, request = scheduler_of(endpoint, stream, [3, 5, 6]), request_of(sender, 3, end_page=2)
    give(scheduler, request, last=False)
    request.extend_end = len(request.origin_input_ids)
    give(scheduler, request, last=True)
    assert sender.poll() == KVPoll.WaitingForInput
    assert sender._pages.given == 0
    stream.is_idle = True
    assert sender.poll() == KVPoll.Transferring
    assert sender._pages.given == 3
    pair.finish(sender, receiver)
    pair.assert_equal_pages([3, 5, 6], [9, 2, 11])
    pair.assert_nothing_held()


def test_should_give_up_a_request_while_its_pages_are_copied(pair: Pair, stream: Stream) -> None:
    from one_process import wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2], slot=4)
    sender.init(2, 2)
    sender.send(Copied(stream, (2,)), [], indices_event=Event(stream))
    sender.abort()
    stream.is_idle = True
    assert sender.poll() == KVPoll.Failed
    assert sender._pages.given == 0
    sender.clear()
    wait_for(receiver, KVPoll.Failed)
    with contextlib.suppress(Exception):
        receiver.failure_exception()
    receiver.clear()
    pair.assert_nothing_held()


def test_should_ask_for_no_copy_where_nothing_is_on_a_device(pair: Pair, stream: Stream) -> None:
    """SGLang would ask for page-locked memory and an event of CUDA."""
    from kv_connector.sglang import hooks

    sender, receiver = pair.begin(pair.next_room(), [9, 2], slot=4)
    assert not sender.supports_host_tensor_indices
    sender.init(2, 2)
    scheduler = scheduler_of(pair.prefiller.endpoint, stream, [3, 5])
    scheduler.device = "cpu"
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: True), reqs=[request_of(sender, 2, 2)])
    [planned] = hooks._plan(scheduler, batch, SimpleNamespace())
    assert [list(group.pages) for group in planned.chunk.groups] == [[3, 5]]
    sender.abort()
    receiver.abort()


def test_should_send_layers_of_a_pass_whose_page_numbers_come_after_it_was_queued(
    gpu_pair: GpuPair, stream: Stream
) -> None:
    """Pages that SGLang has not given yet are at the decoder."""
    from gpu_pair import content_of, the_device
    from one_process import pages, until, wait_for
    from sglang.srt.disaggregation.base.conn import KVPoll

    from kv_connector.sglang import hooks

    pair, endpoint = gpu_pair.pair, gpu_pair.pair.prefiller.endpoint
    endpoint.steps.first_pass.is_right = True
    (item,) = set(endpoint.kv_args.kv_item_lens)
    for buffer in range(len(gpu_pair.places["prefill"])):
        for page in (3, 5):
            gpu_pair.write_page(buffer, page, content_of(buffer, page, item))
    room = pair.next_room()
    sender, receiver = pair.begin(room, [9, 2], slot=4)
    sender.init(2, 2)
    pair.write_metadata(2, room, 123)
    scheduler = scheduler_of(endpoint, stream, [3, 5])
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_extend=lambda: True), reqs=[request_of(sender, 2, 2)], extend_num_tokens=32
    )
    hooks.run_batch(lambda *_: [layer() for layer in gpu_pair.model.layers], scheduler, batch)
    the_device().finish()
    hooks.poll_inflight(scheduler)
    assert sender._pages.known_pages.pages == []
    stream.is_idle = True
    hooks.poll_inflight(scheduler)
    assert sender._pages.known_pages.pages == [3, 5]
    last = len(gpu_pair.places["decode"]) - 1
    until(lambda: gpu_pair.received_page(last, 2, item) == content_of(last, 5, item), "the last layer's last page")
    assert sender._pages.given == 0
    sender.send(pages(3, 5), [])
    for end in (sender, receiver):
        wait_for(end, KVPoll.Success)
        end.clear()
    for buffer in range(last + 1):
        for source, target in ((3, 9), (5, 2)):
            assert gpu_pair.received_page(buffer, target, item) == content_of(buffer, source, item)
    pair.assert_nothing_held()


class Reported:
    """What a messenger would be told of passes."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def step(self, step: int, start: int, chunks: Any) -> bool:
        self.calls.append(("begun", step, start, [chunk.request for chunk in chunks]))
        return True

    def step_ended(self, step: int, end: int) -> None:
        self.calls.append(("ended", step, end))


class Drafted:
    """A sender with a page that the next pass completes, until its request ends."""

    def __init__(self, request: str) -> None:
        self.request, self.has_ended, self.taken = request, False, 0

    def plan(self, _end_token: int, _prompt_tokens: int, pages_of: Any) -> Any:
        from kv_connector.runtime.commands import Chunk
        from kv_connector.sglang.exchange import PlannedChunk

        assert pages_of(0, 1) == [7]
        return None if self.has_ended else PlannedChunk(Chunk(self.request, "1", "", 16, 0, 0, 16, []), self._on_taken)

    def _on_taken(self) -> None:
        self.taken += 1


class LatePasses:
    """Passes with late plans, on a counter that this thread writes."""

    def __init__(self) -> None:
        from kv_connector.memory.layer_counter import LayerCounter
        from kv_connector.sglang.device_reads import DeviceReads
        from kv_connector.sglang.layerwise import LayerwiseSteps

        self._word = ctypes.c_uint64()
        self.reported, self.reads = Reported(), DeviceReads(on_device=True)
        self.counter = LayerCounter(ctypes.addressof(self._word), NAMES)
        self.steps = LayerwiseSteps(
            self.reported,  # type: ignore[arg-type]
            self.counter,
            SimpleNamespace(),  # type: ignore[arg-type]
            None,
            self.reads,
        )

    def run(self, stream: Stream, *senders: Drafted, forward: Any = None) -> None:
        import torch

        from kv_connector.sglang.device_reads import NumberCopies
        from kv_connector.sglang.late_plan import Draft, LatePlan

        copies = NumberCopies(SimpleNamespace(Event=lambda: Event(stream), current_stream=lambda: None))
        drafts = [Draft(sender, 16, 16, 0, copies.add(torch.tensor([7]))) for sender in senders]  # type: ignore[arg-type]
        copies.end()
        self.steps.run(lambda: LatePlan(drafts, copies), forward or self._forward)

    def _forward(self) -> None:
        for name in NAMES:
            self.counter.layer_complete(name)


def test_should_report_late_plans_in_the_order_of_their_passes(stream: Stream) -> None:
    passes, first, second, earlier = LatePasses(), Drafted("first"), Drafted("second"), Stream()
    passes.run(earlier, first)
    passes.run(stream, second)
    stream.is_idle = True
    passes.reads.poll()
    assert passes.reported.calls == [], "the first one's numbers are not there"
    earlier.is_idle = True
    passes.reads.poll()
    begun, ended = len(NAMES), 2 * len(NAMES)
    assert passes.reported.calls == [
        ("begun", 1, 0, ["first"]),
        ("ended", 1, begun),
        ("begun", 2, begun, ["second"]),
        ("ended", 2, ended),
    ]
    assert (first.taken, second.taken) == (1, 1)
    passes.reads.poll()
    assert len(passes.reported.calls) == 4


def test_should_not_name_what_has_ended_before_its_page_numbers_came(stream: Stream) -> None:
    passes, gone, stays = LatePasses(), Drafted("gone"), Drafted("stays")
    passes.run(stream, gone, stays)
    passes.run(stream, gone)
    gone.has_ended = stream.is_idle = True
    passes.reads.poll()
    assert passes.reported.calls == [("begun", 1, 0, ["stays"]), ("ended", 1, len(NAMES))]
    assert gone.taken == 0


def test_should_never_report_a_pass_that_could_not_be_queued(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise RuntimeError("no memory")

    passes = LatePasses()
    with pytest.raises(RuntimeError, match="no memory"):
        passes.run(stream, Drafted("a request"), forward=fails)
    stream.is_idle = True
    passes.reads.poll()
    assert passes.reported.calls == []
    with caplog.at_level(logging.ERROR, "sglang.srt.kv_messenger"):
        passes.run(stream, SimpleNamespace(plan=lambda *_: fails()))  # type: ignore[arg-type]
    assert "a forward pass could not be planned; its chunks leave afterwards" in caplog.text
    assert passes.reported.calls == []
