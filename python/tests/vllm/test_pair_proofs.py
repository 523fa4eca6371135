"""The states of a pair, and which requests wait for which."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kv_connector.configuration.messenger_addresses import Address, Messengers
from kv_connector.naming.pair_rules import PAIRS_MAX, PROBE_TOKENS_MIN, REFUTED_SECONDS, UNJUDGED_MAX, PairState
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.last_token_checks import can_stop, check_of
from kv_connector.vllm.pair_proofs import PROBE_LIMIT_SECONDS, PairProofs
from kv_connector.vllm.proof_messages import Proof, Proved
from kv_connector.vllm.transfer_params import Receive, Refused

BLOCK_TOKENS = 16
FULL = KvGroup(("model.layers.0.attn",), BLOCK_TOKENS)
WINDOW = KvGroup(("model.layers.1.attn",), BLOCK_TOKENS, window_tokens=32)
STATE = KvGroup(("model.layers.2.mixer",), 1 << 30, state=True)
LONG = PROBE_TOKENS_MIN
FIRST: Messengers = (Address("10.0.0.1", 7000),)
SECOND: Messengers = (Address("10.0.0.2", 7000),)
FINDING = "K of layer model.layers.0.attn differs by 1.7"


@dataclass
class Request:
    request_id: str
    num_prompt_tokens: int = LONG
    lora_request: Any = None


@dataclass
class World:
    """A clock, the engine's weights, and the steps between the two halves."""

    check: Any = "fail"
    stops: bool = True
    groups: tuple[KvGroup, ...] = (FULL,)
    messengers: int = 1
    now_seconds: float = 1000.0
    weights: str = ""
    evicted: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.proofs = PairProofs(
            self.groups,
            self.check,
            can_stop=self.stops,
            weights=lambda: self.weights,
            adapter_of=str,
            logger=logging.getLogger("proofs"),
            now_seconds=lambda: self.now_seconds,
        )
        self.proofs.begin([True] * self.messengers)
        self.evict_blocks = self.evicted.append
        self.proofs.bind(self)

    def ask(self, messengers: Messengers = FIRST, *others: Messengers) -> Receive:
        return Receive("t", messengers, "", decoder_first=False, other_prefillers=others)

    def holds(self, request: Request, messengers: Messengers = FIRST) -> bool:
        held = self.proofs.holds_back(request, self.ask(messengers))
        assert held == self.proofs.holds_back(request, self.ask(messengers)), "asking changes something"
        return held

    def fetch(self, request: Request, messengers: Messengers = FIRST, **more: int) -> None:
        tokens = more.get("transferred", request.num_prompt_tokens)
        self.proofs.fetching(request, self.ask(messengers), tokens, more.get("first_token", 0), [7, 8, 9])

    def report(
        self,
        *proved: Proved,
        arrived: Iterable[str] = (),
        connected: dict[str, str] | None = None,
        moved: dict[str, Messengers] | None = None,
    ) -> None:
        self.proofs.reported(connected=connected or {}, moved=moved or {}, arrived=arrived, proved=proved)

    def plan(self, request: Request, **more: int) -> Proof | None:
        last = request.num_prompt_tokens - 1
        blocks = -(-request.num_prompt_tokens // BLOCK_TOKENS)
        tables = [[100 * group + block for block in range(blocks)] for group in range(len(self.groups))]
        return self.proofs.plan(request.request_id, tables, more.get("computed", last), more.get("scheduled", 1))

    def judge(self, request: Request, finding: str = "", *, judged: bool = True) -> None:
        """Everything from the fetch's arrival to the verdict."""
        self.report(arrived=[request.request_id] * self.messengers)
        assert self.plan(request) is not None
        self.report(Proved(request.request_id, judged, 0.01, finding))

    def serve(self, request: Request, finding: str = "", messengers: Messengers = FIRST) -> None:
        self.fetch(request, messengers)
        self.judge(request, finding)

    def state(self, messengers: Messengers = FIRST, adapter: Any = None) -> PairState:
        return self.proofs.state_of(Request("any", lora_request=adapter), messengers)

    def refusal(self, request: Request, *messengers: Messengers) -> str:
        chosen = self.proofs.chosen(request, self.ask(*(messengers or (FIRST,))))
        return chosen.reason if isinstance(chosen, Refused) else ""


@pytest.fixture
def world() -> World:
    return World()


def test_should_let_one_request_go_first_and_the_others_when_it_is_judged(world: World) -> None:
    first, second = Request("first"), Request("second")
    assert not world.holds(first)
    world.fetch(first)
    assert world.holds(second)
    assert not world.holds(first)
    assert not world.holds(Request("other prefiller"), SECOND)
    world.judge(first)
    assert not world.holds(second)
    assert world.state() is PairState.PROVEN
    world.proofs.gone("second")
    assert world.proofs.is_empty()


def test_should_refuse_every_later_fetch_of_a_refuted_pair(world: World) -> None:
    waiting = Request("waiting")
    world.fetch(Request("first"))
    assert world.holds(waiting)
    world.judge(Request("first"), FINDING)
    assert world.state() is PairState.REFUTED
    assert not world.holds(waiting)
    for request in (waiting, Request("later", 2)):
        refusal = world.refusal(request)
        assert FINDING in refusal
        assert "10.0.0.1:7000" in refusal
        assert "last_token_check" in refusal
    assert not world.refusal(Request("x"), SECOND)


def test_should_prove_nothing_by_a_short_prompt_and_make_none_wait_for_it(world: World) -> None:
    short = Request("short", LONG - 1)
    world.fetch(short)
    assert not world.holds(Request("second"))
    world.judge(short)
    assert world.state() is PairState.UNPROVEN


def test_should_refute_by_a_short_prompt(world: World) -> None:
    world.serve(Request("short", 2), FINDING)
    assert world.refusal(Request("second"))


@pytest.mark.parametrize("end", ["gone", "not planned", "moved", "not judged"])
def test_should_not_wait_for_a_request_that_is_never_judged(world: World, end: str) -> None:
    first, second = Request("first"), Request("second")
    world.fetch(first)
    assert world.holds(second)
    if end == "gone":
        world.proofs.gone("first")
    elif end == "not planned":
        world.report(arrived=["first"])
        assert world.plan(first, computed=0, scheduled=1) is None
    elif end == "moved":
        world.report(moved={"first": SECOND})
    else:
        world.judge(first, judged=False)
    assert not world.holds(second)
    world.fetch(second)
    assert world.holds(Request("third")), "the next one goes first"


def test_should_wait_for_a_limited_time(world: World) -> None:
    world.fetch(Request("first"))
    world.now_seconds += PROBE_LIMIT_SECONDS - 0.001
    assert world.holds(Request("second"))
    world.now_seconds += 0.001
    assert not world.holds(Request("second"))
    world.fetch(Request("second"))
    assert not world.holds(Request("third")), "the limit is one for all that wait"
    world.judge(Request("second"))
    assert world.state() is PairState.PROVEN, "any verdict counts"
    world.judge(Request("first"), FINDING)
    assert world.state() is PairState.PROVEN


def test_should_hold_none_back_longer_than_the_limit_however_many_go_first_and_end_unjudged(world: World) -> None:
    last, waited_seconds = Request("last"), 0.0
    for number in range(10):
        first = Request(f"first {number}")
        world.fetch(first)
        if not world.holds(last):
            break
        world.now_seconds += PROBE_LIMIT_SECONDS / 4
        waited_seconds += PROBE_LIMIT_SECONDS / 4
        world.proofs.gone(first.request_id)
    assert waited_seconds == PROBE_LIMIT_SECONDS
    world.fetch(last)
    world.proofs.gone("last")
    world.proofs.gone(first.request_id)
    assert world.proofs.is_empty()


def test_should_let_another_one_go_first_when_a_late_one_has_ended(world: World) -> None:
    world.fetch(Request("late"))
    world.now_seconds += PROBE_LIMIT_SECONDS
    world.proofs.gone("late")
    world.fetch(Request("second"))
    assert world.holds(Request("third"))


def test_should_let_all_through_where_nothing_can_be_compared(world: World) -> None:
    for index in range(UNJUDGED_MAX):
        request = Request(f"r{index}")
        world.fetch(request)
        assert world.holds(Request("waits"))
        world.judge(request, judged=False)
    world.fetch(Request("next"))
    assert not world.holds(Request("waits"))


def test_should_count_only_those_in_a_row_that_could_not_be_compared(world: World) -> None:
    for index in range(UNJUDGED_MAX - 1):
        world.fetch(Request(f"r{index}"))
        world.judge(Request(f"r{index}"), judged=False)
    world.serve(Request("short", 2))
    world.fetch(Request("once more"))
    world.judge(Request("once more"), judged=False)
    world.fetch(Request("next"))
    assert world.holds(Request("waits"))


def test_should_not_refute_a_proven_pair_by_one_request(world: World) -> None:
    world.serve(Request("a"))
    world.serve(Request("b"), FINDING)
    assert world.state() is PairState.PROVEN
    for index in range(7):
        world.serve(Request(f"c{index}"))
    world.serve(Request("d"), FINDING)
    assert world.state() is PairState.PROVEN, "the other one was eight requests ago"
    world.serve(Request("e"), FINDING)
    assert world.state() is PairState.REFUTED


CHANGES: dict[str, Callable[[World], Any]] = {
    "restart": lambda world: world.report(connected={"10.0.0.1:7000": "b"}),
    "weights": lambda world: setattr(world, "weights", "version 2"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("finding", ["", FINDING])
def test_should_prove_a_pair_again_when_it_changes(world: World, change: str, finding: str) -> None:
    world.report(connected={"10.0.0.1:7000": "a"})
    world.serve(Request("first"), finding)
    assert world.state() is (PairState.REFUTED if finding else PairState.PROVEN)
    world.report(connected={"10.0.0.1:7000": "a", "10.0.0.2:7000": "c"})
    assert world.state() is not PairState.UNPROVEN, "the same process connected again"
    CHANGES[change](world)
    assert world.state() is PairState.UNPROVEN
    assert not world.refusal(Request("second"))
    world.fetch(Request("second"))
    assert world.holds(Request("third"))


def test_should_prove_each_adapter_apart(world: World) -> None:
    world.serve(Request("plain"))
    world.serve(Request("adapted", lora_request="a"), FINDING)
    assert world.state() is PairState.PROVEN
    assert world.state(adapter="a") is PairState.REFUTED
    assert world.state(adapter="b") is PairState.UNPROVEN


def test_should_not_count_a_verdict_about_an_earlier_process(world: World) -> None:
    world.report(connected={"10.0.0.1:7000": "a"})
    world.fetch(Request("first"))
    world.report(arrived=["first"])
    assert world.plan(Request("first")) is not None
    world.report(connected={"10.0.0.1:7000": "b"})
    world.report(Proved("first", True, 0.0))
    assert world.state() is PairState.UNPROVEN


def test_should_compare_one_more_request_after_a_time_where_it_can_be_stopped() -> None:
    for stops in (True, False):
        world = World(stops=stops)
        world.serve(Request("first"), FINDING)
        world.now_seconds += REFUTED_SECONDS - 0.001
        assert world.refusal(Request("second"))
        world.now_seconds += 0.001
        assert bool(world.refusal(Request("second"))) != stops


def test_should_need_every_rank_to_agree() -> None:
    world = World(messengers=2)
    request = Request("first")
    world.fetch(request)
    world.report(arrived=["first", "first"])
    assert world.plan(request) is not None
    world.report(Proved("first", True, 0.0), Proved("first", True, 1.7, FINDING), Proved("first", True, 0.0))
    assert world.state() is PairState.REFUTED


def test_should_prove_nothing_if_one_rank_could_not_compare() -> None:
    world = World(messengers=2)
    world.fetch(Request("first"))
    world.report(arrived=["first", "first"])
    world.plan(Request("first"))
    world.report(Proved("first", True, 0.0), Proved("first", False))
    assert world.state() is PairState.UNPROVEN


@pytest.mark.parametrize(
    ("what", "fetched", "arrivals", "planned"),
    [
        ("not arrived everywhere", {}, 1, {}),
        ("not arrived at all", {}, 0, {}),
        ("the last token was not sent", {"transferred": LONG - 1}, 2, {}),
        ("less is computed than was there", {"first_token": 16}, 2, {"computed": 15, "scheduled": LONG}),
        ("the last token is not in this pass", {}, 2, {"computed": 0, "scheduled": LONG - 1}),
        ("the last token is computed already", {}, 2, {"computed": LONG, "scheduled": 1}),
    ],
)
def test_should_compare_only_what_was_sent_and_is_computed_now(
    what: str, fetched: dict[str, int], arrivals: int, planned: dict[str, int]
) -> None:
    world = World(messengers=2)
    world.fetch(Request("r"), **fetched)
    world.report(arrived=["r"] * arrivals)
    assert world.plan(Request("r"), **planned) is None, what
    assert world.proofs.is_empty()


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 32, 33, 100])
def test_should_name_the_place_of_the_last_token_in_each_group(tokens: int) -> None:
    world = World(groups=(FULL, WINDOW))
    request = Request("r", tokens)
    world.fetch(request)
    world.report(arrived=["r"])
    proof = world.plan(request)
    assert proof is not None
    block, offset = (tokens - 1) // BLOCK_TOKENS, (tokens - 1) % BLOCK_TOKENS
    assert list(proof.places) == [(block, offset), (100 + block, offset)]
    assert list(proof.blocks) == [7, 8, 9]
    assert proof.alone


def test_should_compare_nothing_and_raise_nothing_when_the_engine_s_tables_are_not_as_expected(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.fetch(Request("r"))
    world.report(arrived=["r"])
    assert world.proofs.planned("r", [[1, 2], [3, 4]], LONG - 1, 1) == []
    assert "is not compared" in caplog.text
    assert world.proofs.is_empty()
    assert not world.holds(Request("second"))


def test_should_say_whether_the_pass_writes_behind_the_token(world: World) -> None:
    world.fetch(Request("r"))
    world.report(arrived=["r"])
    proof = world.plan(Request("r"), scheduled=4)
    assert proof is not None
    assert not proof.alone


def test_should_fail_a_request_only_where_the_engine_can_stop_it() -> None:
    for check, stops in (("fail", True), ("fail", False), ("warn", True)):
        world = World(check, stops)
        world.fetch(Request("r"))
        world.report(arrived=["r"])
        proof = world.plan(Request("r"))
        assert proof is not None
        assert proof.may_fail == (check == "fail" and stops)


def test_should_take_wrong_kv_out_of_the_prefix_cache(world: World) -> None:
    world.serve(Request("right"))
    world.serve(Request("wrong"), FINDING)
    assert world.evicted == [{7, 8, 9}]


def test_should_only_say_so_with_warn(caplog: pytest.LogCaptureFixture) -> None:
    world = World("warn")
    world.fetch(Request("first"))
    assert not world.holds(Request("second"))
    world.judge(Request("first"), FINDING)
    assert not world.refusal(Request("second"))
    assert FINDING in caplog.text
    assert not world.evicted


@pytest.mark.parametrize("world", [World("off"), World(groups=(FULL, STATE)), World(messengers=0)], ids=str)
def test_should_do_nothing_where_it_is_off_or_cannot_compare(world: World) -> None:
    world.fetch(Request("first"))
    assert not world.holds(Request("second"))
    assert world.proofs.is_empty()
    assert world.plan(Request("first")) is None


def test_should_do_nothing_unless_all_messengers_compare() -> None:
    world = World()
    world.proofs.begin([True, False])
    world.fetch(Request("first"))
    assert world.proofs.is_empty()


def test_should_ask_the_prefillers_that_are_not_refuted(world: World) -> None:
    world.serve(Request("first"), FINDING)
    chosen = world.proofs.chosen(Request("second"), world.ask(FIRST, SECOND))
    assert isinstance(chosen, Receive)
    assert (chosen.messengers, chosen.other_prefillers) == (SECOND, ())
    chosen = world.proofs.chosen(Request("second"), world.ask(SECOND, FIRST))
    assert isinstance(chosen, Receive)
    assert (chosen.messengers, chosen.other_prefillers) == (SECOND, ())


def test_should_judge_the_prefiller_from_which_the_kv_came(world: World) -> None:
    world.fetch(Request("r"))
    world.report(moved={"r": SECOND})
    world.judge(Request("r"), FINDING)
    assert world.state(FIRST) is PairState.UNPROVEN
    assert world.state(SECOND) is PairState.REFUTED


def test_should_count_what_was_compared_and_refused(world: World) -> None:
    world.serve(Request("a"))
    world.fetch(Request("b"))
    world.judge(Request("b"), judged=False)
    world.serve(Request("c", 2), FINDING, SECOND)
    world.refusal(Request("d"), SECOND)
    tallies = world.proofs.take_tallies()
    assert [each.outcome for each in tallies] == ["equal", "unjudged", "different", "refused"]
    assert tallies[2].prefiller == SECOND[0]
    assert tallies[0].worst == 0.01
    assert not world.proofs.take_tallies()


def test_should_remember_a_limited_number_of_pairs(world: World) -> None:
    for index in range(PAIRS_MAX + 10):
        world.serve(Request(f"r{index}"), messengers=(Address("h", 1 + index),))
    assert len(world.proofs._records) == PAIRS_MAX
    assert world.state((Address("h", PAIRS_MAX + 10),)) is PairState.PROVEN
    assert world.state((Address("h", 1),)) is PairState.UNPROVEN


def test_should_be_as_strict_as_right_pairs_allow() -> None:
    assert check_of("", latent=False, device_type="cpu") == "fail"
    assert check_of("", latent=True, device_type="cpu") == "warn"
    assert check_of("", latent=True, device_type="cuda") == "fail"
    assert check_of("", latent=False, convolutions=True, device_type="cpu") == "warn"
    assert check_of("", latent=False, convolutions=True, device_type="cuda") == "fail"
    for asked in ("off", "warn", "fail"):
        assert check_of(asked, latent=True, device_type="cpu") == asked


@pytest.mark.parametrize(
    ("groups", "policy", "asynchronous", "stops"),
    [
        (1, "fail", False, True),
        (1, "fail", True, True),
        (1, "recompute", False, True),
        (1, "recompute", True, False),
        (2, "fail", False, False),
        (2, "recompute", False, False),
    ],
)
def test_should_know_which_requests_the_engine_can_stop(
    groups: int, policy: str, asynchronous: bool, stops: bool
) -> None:
    scheduler = type("Scheduler", (), {"async_scheduling": asynchronous})
    config = type("Config", (), {"scheduler_config": scheduler})
    assert can_stop(config, [FULL] * groups, policy) == stops
