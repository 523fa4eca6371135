"""How often a prefiller's scheduler waits for its GPU because of page numbers: SGLang's own sends, on tables whose
numbers are behind the pass in flight. There is no GPU: what is queued is done when it is waited for.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kv_connector.runtime.commands import Chunk, ChunkPages

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PAGE_TOKENS = 4
ROW_TOKENS = 64
READS = ("tolist", "cpu", "numpy", "item", "__int__", "__index__", "__bool__")
"""What torch waits for the device in, of a tensor there."""


@dataclass(frozen=True)
class Case:
    requests: int
    cached_pages: int
    passes: Sequence[int]
    """How many pages each computes of each request."""
    pools: Sequence[str] = ()
    """SGLang's names of those beside the KV."""

    def __str__(self) -> str:
        return f"{self.requests}-{self.cached_pages}-{'+'.join(map(str, self.passes))}-{'+'.join(self.pools) or 'none'}"


CASES = [
    Case(*drawn)
    for drawn in itertools.product((1, 3), (0, 2), ((4,), (1, 2), (1, 1, 3)), ((), ("DSA",), ("DSA", "BLOCK_SCALE")))
]
"""Whole prompts and prompts in chunks, with and without a cached beginning, pools that leave with the KV."""


class Work:
    """Something on a stream of the device, behind others."""

    def __init__(self, does: Callable[[], object], *behind: Work, is_pass: bool = False) -> None:
        self._does, self._behind, self._is_pass, self.done = does, behind, is_pass, False

    def finish(self) -> int:
        """Has it done; the number of forward passes that this took."""
        if self.done:
            return 0
        passes = sum(each.finish() for each in self._behind)
        self._does()
        self.done = True
        return passes + self._is_pass


@dataclass
class Device:
    """Two streams, as SGLang's overlap scheduler has them."""

    schedule: Work = field(default_factory=lambda: Work(list))
    forward: Work = field(default_factory=lambda: Work(list))
    waits: list[int] = field(default_factory=list)
    """Of the scheduler's thread, each with the number of passes that it lasted."""

    def queue(self, does: Callable[[], object]) -> None:
        self.schedule = Work(does, self.schedule)

    def queue_pass(self) -> Work:
        self.forward = Work(list, self.forward, self.schedule, is_pass=True)
        return self.forward

    def hold_tables(self) -> None:
        """SGLang's barrier: its tables are not written again before the pass has read them."""
        self.schedule = Work(list, self.schedule, self.forward)

    def wait(self) -> None:
        self.waits.append(self.schedule.finish())


class Event:
    """Of torch's, on the present device."""

    device: Device

    def record(self, stream: object = None) -> None:
        self._behind = self.device.forward if stream == "forward" else self.device.schedule

    def query(self) -> bool:
        return self._behind.done

    def synchronize(self) -> None:
        self.device.waits.append(self._behind.finish())


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    import torch

    with warnings.catch_warnings(action="ignore"):
        from one_process import publish_arguments
    publish_arguments(tmp_path, 1)

    made, empty = Device(), torch.empty

    def on_host(*shape: Any, pin_memory: bool = False, **named: Any) -> Any:
        """Whatever was there before."""
        return empty(*shape, **named).fill_(-1) if pin_memory else empty(*shape, **named)

    monkeypatch.setattr(Event, "device", made, raising=False)
    monkeypatch.setattr(torch, "empty", on_host)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "schedule")
    return made


def on_device(numbers: Any, device: Device) -> Any:
    """A tensor that is the device's, and all that is computed of it."""
    import torch

    class OnDevice(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
            name, named = getattr(function, "__name__", ""), named or {}
            plain = [each.as_subclass(torch.Tensor) if isinstance(each, cls) else each for each in given]
            if name == "copy_" and named.get("non_blocking"):
                device.queue(lambda: function(*plain))
                return given[0]
            if name in (*READS, "copy_"):
                device.wait()
                return function(*plain, **named)
            return super().__torch_function__(function, types, given, named)

    return torch.as_tensor(numbers, dtype=torch.int32).as_subclass(OnDevice)


class Exchange:
    """Hears what the messenger would."""

    def __init__(self) -> None:
        self.chunks: list[tuple[str, Sequence[ChunkPages]]] = []
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.finished: list[str] = []

    def announce(self, room: int, _digest: str) -> Any:
        from kv_connector.sglang.exchange import Outgoing

        return Outgoing(f"{room}#1", str(room), granted=SimpleNamespace(first_token=0))  # type: ignore[arg-type]

    def step(self, step: int, _start: int, chunks: Sequence[Chunk]) -> bool:
        self.begun.append(step)
        self.chunks += [(chunk.request, chunk.groups) for chunk in chunks]
        return True

    def step_ended(self, step: int, _end: int) -> None:
        self.ended.append(step)

    def computed(self, out: Any, _tokens: int, _end: int, groups: Sequence[ChunkPages]) -> None:
        self.chunks.append((out.request, groups))

    def finish(self, out: Any, _slot: int) -> None:
        out.ended = True
        self.finished.append(out.request)

    def abort(self, _out: Any, reason: str) -> None:
        raise AssertionError(reason)

    def drain(self) -> None:
        """Nothing comes."""

    def pages(self, request: str) -> dict[int, int]:
        """Of the KV, by position; each was named once, or with the same page."""
        named: dict[int, int] = {}
        for _, groups in [each for each in self.chunks if each[0] == request]:
            for position, page in enumerate(groups[0].pages, groups[0].first_page):
                assert named.setdefault(position, page) == page
        return named


class Scheduler:
    """SGLang's own methods of a prefiller, and of the rest what they use."""

    def __init__(self, case: Case, device: Device, *, waits: bool) -> None:
        import torch
        from sglang.srt.disaggregation.base.conn import StateType
        from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin as Mixin

        from kv_connector.sglang.page_numbers import PageNumbers, PinnedCopies

        self.case, self.device, self.exchange = case, device, Exchange()
        self.numbers = PageNumbers(None if waits else PinnedCopies())
        self.token_of = torch.randperm(64, generator=torch.Generator().manual_seed(1))[: 16 * case.requests]
        rows = (
            self.token_of.unflatten(0, (case.requests, -1))[..., None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)
        ).flatten(1)
        self.req_to_token_pool = SimpleNamespace(req_to_token=on_device(rows, device))
        self.token_to_kv_pool_allocator = SimpleNamespace(
            page_size=PAGE_TOKENS, translate_kv_indices_for_transfer=lambda tokens: tokens
        )
        self.endpoint = self._endpoint([getattr(StateType, name) for name in case.pools])
        self.disagg_prefill_bootstrap_queue = SimpleNamespace(kv_manager=self.endpoint)
        self.disagg_metadata_buffers = SimpleNamespace(set_buf=lambda _request: None)
        self.disagg_prefill_pending_chunk_rids: set[int] = set()
        self.tree_cache = SimpleNamespace(supports_prefix_sharing=lambda: True)
        self.kv_checksum_computer, self.enable_staging, self.enable_overlap = None, False, True
        self.forward_stream = "forward"
        for name in ("maybe_send_cached_prefix_chunk", "send_kv_chunk", "_send_kv_chunk"):
            setattr(self, name, MethodType(getattr(Mixin, name), self))
        self.requests = [self._request(at) for at in range(case.requests)]

    def _endpoint(self, state_types: Sequence[Any]) -> Any:
        import ctypes

        from kv_connector import LayerCounter
        from kv_connector.sglang.beside_pages import PromptParts, SamePages
        from kv_connector.sglang.layerwise import LayerwiseSteps
        from kv_connector.sglang.twins import Twins

        self.word = ctypes.c_uint64()
        counter = LayerCounter(ctypes.addressof(self.word), ["layer.0"])
        self.counter = counter
        return SimpleNamespace(
            kv_args=SimpleNamespace(page_size=PAGE_TOKENS, state_types=state_types),
            exchange=self.exchange,
            page_numbers=self.numbers,
            steps=LayerwiseSteps(
                self.exchange,
                counter,
                Twins(PAGE_TOKENS, 2),
                page_numbers=self.numbers,  # type: ignore[arg-type]
            ),
            take_prompt_tokens=lambda: 0,
            take_prompt_digest=lambda: "",
            take_pull=lambda: None,
            prompt_parts=lambda pages, _tokens, _first: PromptParts(
                pages * PAGE_TOKENS, [SamePages("a pool", 0) for _ in state_types], [None] * len(state_types)
            ),
            attn_cp_size=1,
            enable_all_cp_ranks_for_transfer=False,
            report_stages=lambda *_given: None,
            forget_room=lambda _room: None,
            place_room=lambda *_given: "",
        )

    def _request(self, at: int) -> Any:
        from kv_connector.sglang.sender import Sender

        pages = self.case.cached_pages + sum(self.case.passes)
        sender = Sender(self.endpoint, "h:1", 1 + at)
        sender.init(pages, at)
        return SimpleNamespace(
            disagg_kv_sender=sender,
            rid=at,
            pending_bootstrap=False,
            kv=SimpleNamespace(req_pool_idx=at),
            origin_input_ids=[1000 * at + token for token in range(pages * PAGE_TOKENS)],
            extra_key=None,
            cache_salt=None,
            host_hit_length=0,
            start_send_idx=0,
            disagg_decode_prefix_len=0,
            early_send_prefix_end=None,
            prefix_len=self.case.cached_pages * PAGE_TOKENS,
            extend_end=0,
            _compute_max_prefix_len=lambda length: length - 1,
        )

    def run(self) -> list[list[int]]:
        """All passes; for each the waits before it is queued, and after the last those behind passes."""
        from kv_connector.sglang import hooks

        before: list[list[int]] = []
        behind: list[int] = []
        running: tuple[Work, list[int]] | None = None
        end_page = self.case.cached_pages
        for pages in self.case.passes:
            self.device.waits = []
            for request in self.requests:
                request.prefix_len, request.extend_end = end_page * PAGE_TOKENS, (end_page + pages) * PAGE_TOKENS
            end_page += pages
            batch = SimpleNamespace(reqs=self.requests, forward_mode=SimpleNamespace(is_extend=lambda: True))
            queued = hooks.run_batch(self._queued, self, batch)
            before.append(self.device.waits)
            self.device.waits = []
            if running is not None:
                self._result(*running)
            self.device.hold_tables()
            behind += self.device.waits
            running = queued, [request.extend_end for request in self.requests]
        assert running is not None
        self.device.waits = []
        self._result(*running)
        for request in self.requests:
            request.disagg_kv_sender.poll()
        return [*before, behind + self.device.waits]

    def _queued(self, _scheduler: Any, batch: Any) -> Work:
        for request in batch.reqs:
            self.maybe_send_cached_prefix_chunk(request)  # type: ignore[attr-defined]
        return self.device.queue_pass()

    def _result(self, of_pass: Work, ends: Sequence[int]) -> None:
        of_pass.finish()  # SGLang waits for each result, which is no wait for page numbers
        for request, end in zip(self.requests, ends, strict=True):
            last = end == len(request.origin_input_ids)
            self.send_kv_chunk(request, last_chunk=last, end_idx=end)  # type: ignore[attr-defined]

    def expected(self, at: int) -> dict[int, int]:
        row = self.token_of.unflatten(0, (self.case.requests, -1))[at].tolist()
        return dict(enumerate(row[: self.case.cached_pages + sum(self.case.passes)]))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_should_not_wait_for_the_pass_in_flight_nor_before_one_is_queued(case: Case, device: Device) -> None:
    scheduler = Scheduler(case, device, waits=False)
    *before, after = scheduler.run()
    assert before == [[]] * len(case.passes)
    assert not any(after), "SGLang's own reads behind a pass waited for the next one"
    _assert_sent(scheduler)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_should_count_the_waits_of_numbers_that_are_read_at_once(case: Case, device: Device) -> None:
    """As without a GPU, or without overlap, where no pass is in flight: here it is."""
    scheduler = Scheduler(case, device, waits=True)
    *before, after = scheduler.run()
    planned = [case.requests] * len(case.passes)
    cached = [case.requests * bool(case.cached_pages or at) for at in range(len(case.passes))]
    assert [len(waits) for waits in before] == [sum(each) for each in zip(planned, cached, strict=True)]
    assert [sum(waits) for waits in before] == [0, *([1] * (len(case.passes) - 1))]
    assert not any(after)
    _assert_sent(scheduler)


def _assert_sent(scheduler: Scheduler) -> None:
    exchange = scheduler.exchange
    assert exchange.finished == [f"{1 + at}#1" for at in range(scheduler.case.requests)]
    for at, request in enumerate(exchange.finished):
        assert exchange.pages(request) == scheduler.expected(at)
    assert exchange.begun == exchange.ended == list(range(1, 1 + len(scheduler.case.passes)))
