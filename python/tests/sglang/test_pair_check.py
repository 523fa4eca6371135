"""What a batch of received requests goes through, on a rank whose pass, pools or neighbours fail."""

from __future__ import annotations

import logging
import warnings
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

THERE = ("10.0.0.1", 7000)
FINDING = "K of layer 0 differs by 1.7 of its largest number"


@dataclass
class Neighbour:
    """The other rank's values, in the order in which they are asked for; none: it agrees."""

    says: list[list[int]] = field(default_factory=list)
    asked: list[list[int]] = field(default_factory=list)

    def reduce(self, flags: Sequence[int], _group: Any, operation: Any) -> list[int]:
        self.asked.append(list(flags))
        other = self.says.pop(0) if self.says else list(flags)
        choose = min if "MIN" in str(operation) else max
        return [choose(pair) for pair in zip(flags, other, strict=True)]


@dataclass
class World:
    """A rank with passes and comparisons that go as the test wants."""

    monkeypatch: pytest.MonkeyPatch
    check: Any = "fail"
    neighbour: Neighbour = field(default_factory=Neighbour)
    passes: list[str] = field(default_factory=list)
    verdicts: list[Any] = field(default_factory=list)
    counted: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)
    fault: dict[str, Exception] = field(default_factory=dict)
    """By what raises it: "unsafe", "take", "run", "compare" or "release"; "answer", "free" or "count" at an end."""
    unsafe: str = ""

    def __post_init__(self) -> None:
        from sglang.srt.disaggregation import utils
        from sglang.srt.mem_cache import common

        from kv_connector.sglang import pair_check
        from kv_connector.sglang.pair_states import PairStates, Verdict

        self.pairs = PairStates(self.check, weights=lambda: "", logger=logging.getLogger("pairs"))
        exchange: Any = SimpleNamespace(count_compared=lambda *counted: self.counted.append(counted[0]))
        self.pair_check = pair_check.PairCheck(
            self.pairs, exchange, None, window_tokens=0, logger=logging.getLogger("check")
        )
        world = self

        class Pass:
            row = 9

            def __init__(self, _scheduler: Any, tokens: Sequence[int], _adapter: str | None) -> None:
                world.step("take")
                self.token_count = len(tokens)

            def run(self) -> None:
                world.step("run")

            def release(self) -> None:
                world.step("release")

        def verdict(_rows: Any) -> Any:
            world.step("compare")
            return world.verdicts.pop(0) if world.verdicts else Verdict(True, 0.001)

        def unsafe(*_: Any) -> str:
            world.step("unsafe")
            return world.unsafe

        put = self.monkeypatch.setattr
        put(pair_check, "OwnPass", Pass)
        put(pair_check, "unsafe", unsafe)
        put(pair_check, "ReceivedRows", lambda _: SimpleNamespace(verdict=verdict))
        put(pair_check, "reduced", self.neighbour.reduce)
        put(utils, "prepare_abort", lambda request, text, **_: self.ended.append((request.rid, text)))
        put(common, "release_kv_cache", self._release)
        self.scheduler = SimpleNamespace(
            enable_overlap=False,
            attn_tp_cpu_group=None,
            tree_cache=None,
            output_streamer=SimpleNamespace(stream_output=lambda *_: self.step("answer")),
            metrics_reporter=SimpleNamespace(enable_metrics=True),
            metrics_collector=SimpleNamespace(increment_transfer_failed_reqs=self._count),
        )

    def _release(self, request: Any, *_: Any, **__: Any) -> None:
        self.ended.append((request.rid, "released"))
        self.step("free")

    def _count(self) -> None:
        self.counted.append("failed")
        self.step("count")

    def step(self, name: str) -> None:
        self.passes.append(name)
        if name in self.fault:
            raise self.fault[name]

    def request(self, name: str, tokens: int = 40, port: int = THERE[1], sessions: int = 0, **more: Any) -> Any:
        from kv_connector.runtime.commands import PrefillerAddress
        from kv_connector.sglang.pair_check import bind
        from kv_connector.sglang.pair_states import Arrival

        request = SimpleNamespace(
            rid=name,
            bootstrap_host=THERE[0],
            bootstrap_port=port,
            disagg_prefill_dp_rank=None,
            lora_id=None,
            multimodal_inputs=None,
            input_embeds=None,
            positional_embed_overrides=None,
            token_type_ids=None,
            session=None,
            return_logprob=False,
            skip_radix_cache_insert=False,
            origin_input_ids=array("q", range(tokens)),
            output_ids=array("q", [7]),
            kv=SimpleNamespace(cache_protected_len=0, req_pool_idx=1),
        )
        vars(request).update(more)
        arrival = Arrival()
        assert not self.pairs.fetching(arrival, (PrefillerAddress(THERE[0], port),))
        arrival.sessions = sessions
        bind(request, arrival)
        return request

    def batch(self, *requests: Any) -> list[str]:
        """The names of those that are left."""

        class Batch:
            def __init__(self) -> None:
                self.reqs = list(requests)

            def filter_batch(self, keep_indices: list[int]) -> None:
                self.reqs = [self.reqs[place] for place in keep_indices]

        batch = Batch()
        self.pair_check.of_batch(self.scheduler, batch)
        return [request.rid for request in batch.reqs]

    def state(self) -> str:
        from kv_connector.runtime.commands import PrefillerAddress
        from kv_connector.sglang.pair_states import Pair

        return self.pairs.state_of(Pair((PrefillerAddress(*THERE),), "", "")).value


@pytest.fixture
def world(sglang_plugins: None, monkeypatch: pytest.MonkeyPatch) -> World:
    assert sglang_plugins is None
    with warnings.catch_warnings(action="ignore"):
        return World(monkeypatch)


def different() -> Any:
    from kv_connector.sglang.pair_states import Verdict

    return Verdict(True, 1.7, FINDING)


ONE_PASS = ["take", "run", "compare", "release"]


def test_one_request_of_a_pair_is_compared(world: World) -> None:
    assert world.batch(world.request("a"), world.request("b"), world.request("short", 31)) == ["a", "b", "short"]
    assert world.passes == ["unsafe", *ONE_PASS]
    assert world.batch(world.request("c")) == ["c"]
    assert world.passes == ["unsafe", *ONE_PASS]
    assert world.state() == "proven"
    assert world.counted == ["equal"]


def test_all_requests_of_a_refuted_pair_fail_and_no_others(world: World) -> None:
    world.verdicts = [different()]
    late = world.request("late")
    left = world.batch(world.request("a"), world.request("short", 3), world.request("other", port=7001))
    assert left == ["other"]
    assert [name for name, text in world.ended if text == "released"] == ["a", "short"]
    assert all(FINDING in text for _, text in world.ended if text != "released")
    assert world.batch(late) == [], "it was on its way when the pair was refuted"
    assert [each for each in world.counted if each != "failed"] == ["different", "equal"]
    assert world.counted.count("failed") == 3


def test_a_prompt_of_an_earlier_process_proves_nothing_of_the_next_one_in_the_same_batch(world: World) -> None:
    """The first one waited for its batch while its prefiller was started again, at the same address."""
    from kv_connector.runtime.commands import PrefillerAddress
    from kv_connector.sglang.pair_states import Verdict

    first = world.request("of the process before")
    world.pairs.connected(PrefillerAddress(*THERE), "before", 0)
    world.pairs.connected(PrefillerAddress(*THERE), "after", 1)
    second = world.request("of the process after", sessions=1)
    world.verdicts = [Verdict(True, 0.001), different()]
    assert world.batch(first, second) == [], "which of a batch came from which process is not asked"
    assert world.state() == "refuted"


def test_warn_fails_nothing(sglang_plugins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sglang_plugins is None
    world = World(monkeypatch, check="warn")
    world.verdicts = [different()]
    assert world.batch(world.request("a")) == ["a"]
    assert world.state() == "refuted"
    assert not world.ended


@pytest.mark.parametrize("place", ["take", "run", "compare", "release"])
def test_a_fault_leaves_the_request_unjudged_and_served(world: World, place: str) -> None:
    world.fault = {place: RuntimeError("no memory")}
    assert world.batch(world.request("a")) == ["a"]
    assert ("release" in world.passes) is (place != "take")
    assert world.state() == ("proven" if place == "release" else "unproven")
    world.fault = {}
    assert world.batch(world.request("b")) == ["b"]
    assert world.state() == "proven"


@pytest.mark.parametrize("place", ["answer", "free", "count"])
def test_a_refused_request_is_not_answered_if_ending_it_fails(world: World, place: str) -> None:
    """On this rank: the others have dropped it, and its pages may be free."""
    world.verdicts = [different()]
    world.fault = {place: RuntimeError("no such counter")}
    assert world.batch(world.request("a"), world.request("b")) == []
    assert [name for name, text in world.ended if text == "released"] == ["a", "b"]
    assert world.counted.count("failed") == 2


def test_full_pools_are_tried_again_with_the_next_request(world: World) -> None:
    from kv_connector.sglang.own_pass import NoRoomError

    world.fault = {"take": NoRoomError("0 tokens are free, 48 are needed")}
    assert world.batch(world.request("a")) == ["a"]
    world.fault = {}
    world.batch(world.request("b"))
    assert world.counted == ["unjudged", "equal"]


def test_an_engine_that_can_run_no_pass_serves_and_says_so_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.unsafe = "--enable-dp-attention is set"
    for name in "ab":
        assert world.batch(world.request(name)) == [name]
    assert caplog.text.count("--enable-dp-attention is set") == 1
    assert world.passes == ["unsafe"]


def test_a_neighbour_that_wants_a_comparison_gets_it(world: World) -> None:
    world.batch(world.request("a"))
    world.neighbour.says = [[1]]  # it has seen the prefiller restart
    world.batch(world.request("b"))
    assert world.passes == ["unsafe", *ONE_PASS, *ONE_PASS]


def test_no_pass_is_run_alone(world: World) -> None:
    world.neighbour.says = [[1], [0]]  # it has no pages for it
    assert world.batch(world.request("a")) == ["a"]
    assert world.passes == ["unsafe", "take", "release"]


def test_a_neighbour_that_can_run_none_is_waited_for(world: World) -> None:
    """The rank that cannot run a pass must still answer all questions of the others."""
    world.unsafe = "this one cannot"
    world.neighbour.says = [[1], [1], [0, 0]]
    assert world.batch(world.request("a")) == ["a"]
    assert world.neighbour.asked == [[0], [0], [1, 0]]
    assert world.passes == ["unsafe"]


def test_what_a_neighbour_finds_fails_the_request_here(world: World) -> None:
    world.neighbour.says = [[1], [1], [0, 1]]
    assert world.batch(world.request("a")) == []
    assert world.state() == "refuted"


@pytest.mark.parametrize(
    "unlike",
    [
        {"multimodal_inputs": object()},
        {"input_embeds": [[1.0]]},
        {"positional_embed_overrides": object()},
        {"token_type_ids": [0]},
        {"session": object()},
        # 512 are computed, and all but 31 of them are the decoder's own.
        {"tokens": 600, "kv": SimpleNamespace(cache_protected_len=481, req_pool_idx=1)},
    ],
)
def test_a_prompt_that_is_not_tokens_alone_is_left_to_the_next_one(world: World, unlike: dict[str, Any]) -> None:
    assert world.batch(world.request("a", **unlike)) == ["a"]
    assert "take" not in world.passes
    assert world.state() == "unproven"


def test_a_request_that_comes_back_is_not_compared_again(world: World) -> None:
    request = world.request("a", tokens=31)
    assert world.batch(request) == ["a"]
    request.origin_input_ids += array("q", range(31))
    assert world.batch(request) == ["a"], "SGLang has resumed it; its KV is this engine's own by now"
    assert "take" not in world.passes


def test_a_pass_runs_alone_on_the_stream_of_passes(sglang_plugins: None) -> None:
    from contextlib import contextmanager

    from kv_connector.sglang.own_pass import on_stream

    assert sglang_plugins is None
    seen: list[str] = []

    @contextmanager
    def entered() -> Any:
        seen.append("enter")
        yield
        seen.append("leave")

    stream = SimpleNamespace(
        synchronize=lambda: seen.append("wait"), wait_stream=lambda other: seen.append(f"behind {other}")
    )
    scheduler = SimpleNamespace(
        enable_overlap=True, forward_stream=stream, schedule_stream="schedule", forward_stream_ctx=entered()
    )
    with on_stream(scheduler):
        seen.append("pass")
    assert seen == ["wait", "enter", "behind schedule", "pass", "wait", "leave"]


@pytest.mark.parametrize("skips", [False, True])
def test_should_let_nothing_be_cached_before_its_batch_is_checked(monkeypatch: pytest.MonkeyPatch, skips: bool) -> None:
    """SGLang caches the KV of a request whose client leaves before; a request may be retracted, and arrive twice."""
    from kv_connector.sglang.pair_check import bind
    from kv_connector.sglang.pair_states import Arrival

    world = World(monkeypatch)
    request = world.request("a", skip_radix_cache_insert=skips)
    bind(request, Arrival())
    assert request.skip_radix_cache_insert
    world.batch(request)
    assert request.skip_radix_cache_insert == skips
