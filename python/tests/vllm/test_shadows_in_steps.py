"""Shadow fetches in both halves of the connector, in every order in which the two computations can end.

The orders are generated: what becomes of the fetch, and when, against what becomes of the request, and when.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_prefill

from kv_connector import Connected
from kv_connector.naming.pair_rules import UNJUDGED_MAX, PairState
from kv_connector.vllm.proof_messages import Proof, Proved, ShadowProof

FINDING = "K of layer model.layers.0.self_attn.attn differs by 1.7"
TOKENS = 600
PASSES = 3
"""In which the engine computes them."""
CACHED_TOKENS = 4 * BLOCK_TOKENS
STEPS = 12

FETCH_ENDS = ("arrives", "fails", "is quarantined and fails", "is quarantined and arrives", "is refused here")
REQUEST_ENDS = ("lives on", "is aborted", "is preempted")
FETCH_END_STEPS = (0, 2, 3, 5)
REQUEST_END_STEPS = (0, 1, 2, 3, 5)
VERDICTS = ("equal", "different", "not judged", "raises")


class Judge:
    """Finds what the test wants, of shadow fetches; nothing else is asked of it before the pair is proven."""

    proved: type[Proved]
    """The class of the release under test."""

    def __init__(self, verdict: str = "equal") -> None:
        self.verdict = verdict
        self.seen: list[ShadowProof] = []
        self.kept: list[Proof] = []

    def keep(self, proofs: Sequence[Proof]) -> None:
        self.kept += proofs

    def judge(self) -> list[Proved]:
        return []

    def compare(self, shadow: ShadowProof) -> Proved:
        self.seen.append(shadow)
        if self.verdict == "raises":
            raise ValueError("simulated")
        finding = FINDING if self.verdict == "different" else ""
        return self.proved(shadow.request, self.verdict != "not judged", 0.1, finding)


class World:
    """A decoder that could not stop a wrong answer, with one request that goes first."""

    def __init__(self, engine: EngineMaker, verdict: str = "equal", **more: Any) -> None:
        self.judge = Judge(verdict)
        self.decoder: SimulatedEngine = engine("kv_consumer", **more)
        self.half = self.decoder.own_scheduler._half
        self.decoder.compare_last_tokens(self.judge)
        self.half._proofs._can_stop = False
        worker = self.decoder.own_worker._worker
        worker._empty_steps.wait = lambda *_: None  # nothing to wait for in a simulation

    def add(self, name: str, tokens: int = TOKENS, max_tokens: int = 4, cached: int = 0, **more: Any) -> None:
        self.decoder.add(name, tokens, remote_prefill(**more), max_tokens=max_tokens, cached=cached)

    @property
    def fetches(self) -> list[dict[str, Any]]:
        return self.decoder.messenger.of_kind("fetch")

    def step(self) -> None:
        self.decoder.step()
        for fetch in self.fetches:
            if self.decoder.messenger.owes().get(fetch["request"]) == "fetch":
                pages = {page for group in fetch["groups"] for page in group["pages"]}
                assert not pages & set(self.decoder.pool.free), "a block is free while it may be written to"

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def end_fetch(self, number: str, how: str) -> None:
        messenger = self.decoder.messenger
        if "quarantined" in how:
            messenger.quarantine(number)
            self.step()
        messenger.arrive(number) if "arrives" in how else messenger.fail(number)

    def end_request(self, name: str, how: str) -> None:
        running = [each.request_id for each in self.decoder.running]
        if how == "is aborted" and name in self.decoder.requests:
            self.decoder.abort(name)
        elif how == "is preempted" and name in running:
            self.decoder.preempt(name)

    def state(self) -> PairState:
        (record,) = self.half._proofs._records.values()
        return PairState(record.state.value)  # of the release under test


def orders() -> list[tuple[str, str, str]]:
    """Without a fetch that arrives there is nothing to judge."""
    judged = [("arrives", request_ends, verdict) for request_ends in REQUEST_ENDS for verdict in VERDICTS]
    return judged + [
        (fetch_ends, request_ends, "equal") for fetch_ends in FETCH_ENDS[1:] for request_ends in REQUEST_ENDS
    ]


@pytest.mark.parametrize(("fetch_ends", "request_ends", "verdict"), orders())
def test_should_answer_rightly_and_leak_nothing_in_any_order(
    engine: EngineMaker, fetch_ends: str, request_ends: str, verdict: str
) -> None:
    fetch_steps = FETCH_END_STEPS if fetch_ends != "is refused here" else (0,)
    request_steps = REQUEST_END_STEPS if request_ends != "lives on" else (0,)
    for fetch_step, request_step in itertools.product(fetch_steps, request_steps):
        world = World(engine, verdict)
        if fetch_ends == "is refused here":
            world.decoder.messenger.refuse.add("fetch")
        world.add("first")
        for step in range(STEPS):
            world.step()
            if step == fetch_step and fetch_ends != "is refused here":
                (fetch,) = world.fetches
                world.end_fetch(fetch["request"], fetch_ends)
            if step == request_step:
                world.end_request("first", request_ends)
        _check(world, (fetch_ends, fetch_step), (request_ends, request_step))


def _check(world: World, fetch: tuple[str, int], request: tuple[str, int]) -> None:
    decoder, judge = world.decoder, world.judge
    case = f"the fetch {fetch[0]} in step {fetch[1]}, the request {request[0]} in step {request[1]}"
    was_computed = request[0] == "lives on" or request[1] >= PASSES - 1
    ended = decoder.ended["first"].name
    was_waited_for = ended != "FINISHED_ABORTED" or fetch[1] < request[1]
    compared = fetch[0] == "arrives" and was_computed and was_waited_for
    assert len(judge.seen) == compared, case
    found = {"equal": PairState.PROVEN, "different": PairState.REFUTED}.get(judge.verdict) if compared else None
    assert world.state() is (found or PairState.UNPROVEN), case
    is_early = request[0] == "is aborted" and ended == "FINISHED_ABORTED"
    assert is_early or ended == "FINISHED_LENGTH_CAPPED", case
    assert decoder.at_rest(), case


def test_should_learn_nothing_of_a_pair_from_a_beginning_that_is_cached_here(engine: EngineMaker) -> None:
    """It has no token that this engine computes: three of them are no reason to use the KV of an unproven pair."""
    world = World(engine)
    for number in range(UNJUDGED_MAX):
        world.add(f"cached {number}", cached=CACHED_TOKENS, remote_prompt_tokens=CACHED_TOKENS - 5)
        world.step()
        for fetch in [each for each in world.fetches if each["request"] in world.decoder.messenger.owes()]:
            world.end_fetch(fetch["request"], "arrives")
        world.steps(STEPS)
    world.add("first", remote_prompt_tokens=CACHED_TOKENS - 5)
    world.step()
    assert world.decoder.requests["first"].status.name == "RUNNING", "it is computed here, and compared"
    world.end_fetch(world.fetches[-1]["request"], "arrives")
    world.steps(STEPS)
    assert len(world.judge.seen) == 1
    assert world.state() is PairState.PROVEN
    assert world.decoder.at_rest()


def test_should_compare_what_the_pass_wrote_with_what_was_fetched(engine: EngineMaker) -> None:
    world = World(engine)
    world.add("first")
    world.step()
    (fetch,) = world.fetches
    own = world.decoder.requests["first"].blocks
    scratch = fetch["groups"][0]["pages"]
    assert fetch["promptTokens"] == TOKENS
    assert fetch["firstToken"] == 0
    assert not set(own) & set(scratch)
    world.decoder.messenger.arrive(fetch["request"])
    world.steps(4)
    (proof,) = world.judge.seen
    blocks = list(world.decoder.requests["first"].blocks) if "first" in world.decoder.requests else own
    for token in proof.tokens:
        (mine,), (theirs,) = token.own, token.received
        assert mine is not None
        assert theirs is not None
        assert blocks.index(mine[0]) == scratch.index(theirs[0])
        assert mine[1] == theirs[1]
    world.steps(STEPS)
    assert world.decoder.at_rest()


def test_should_hold_the_others_back_and_fetch_them_when_the_pair_is_proven(engine: EngineMaker) -> None:
    world = World(engine)
    for name in ("first", "second", "third"):
        world.add(name)
    world.steps(PASSES + 1)
    (fetch,) = world.fetches
    world.decoder.messenger.arrive(fetch["request"])
    world.steps(3)
    assert [each["request"] for each in world.fetches[1:]] == ["second", "third"]
    for name in ("second", "third"):
        world.decoder.messenger.arrive(name)
    world.steps(STEPS)
    assert {each.request for each in world.judge.kept} == {"second", "third"}, "judged late, by their last token"


def test_should_refuse_the_others_when_the_pair_is_refuted(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(engine, "different")
    world.add("first")
    world.add("second")
    world.step()
    world.decoder.messenger.arrive(world.fetches[0]["request"])
    world.steps(STEPS)
    assert world.decoder.ended["first"].name == "FINISHED_LENGTH_CAPPED"
    assert world.decoder.ended["second"].name == "FINISHED_ERROR"
    assert len(world.fetches) == 1
    assert FINDING in caplog.text
    assert "goes on with wrong KV" not in caplog.text
    assert world.decoder.at_rest()


def test_should_compute_short_prompts_here_and_let_their_prefiller_go(engine: EngineMaker) -> None:
    world = World(engine)
    world.add("short", 20)
    world.steps(6)
    assert world.decoder.ended["short"].name == "FINISHED_LENGTH_CAPPED"
    assert not world.fetches
    assert len(world.decoder.messenger.of_kind("decline")) == 1
    assert world.decoder.at_rest()


def test_should_go_on_stepping_until_the_fetch_has_ended_but_not_for_a_quarantine(engine: EngineMaker) -> None:
    world = World(engine)
    world.add("first", max_tokens=1)
    world.steps(PASSES + 1)
    (fetch,) = world.fetches
    assert "first" in world.decoder.ended
    assert world.decoder.has_work()
    world.decoder.messenger.quarantine(fetch["request"])
    world.steps(3)
    assert not world.decoder.has_work()
    assert not world.decoder.at_rest(), "the prefiller may still write"
    world.decoder.messenger.fail(fetch["request"])
    world.steps(2)
    assert world.decoder.at_rest()


@pytest.mark.parametrize("empties_cache", [True, False])
@pytest.mark.parametrize("fetch_ends", FETCH_ENDS[:-1])
def test_should_come_to_rest_when_it_is_paused_in_any_step(
    engine: EngineMaker, fetch_ends: str, empties_cache: bool
) -> None:
    """A paused engine computes nothing: it must not step for a prompt, and what is preempted leaves no block held."""
    for pause_step, fetch_step in itertools.product(range(PASSES + 1), repeat=2):
        world = World(engine)
        decoder = world.decoder
        world.add("first")
        for step in range(STEPS):
            world.step()
            if step == fetch_step:
                world.end_fetch(world.fetches[0]["request"], fetch_ends)
            decoder.paused = decoder.paused or step == pause_step
        case = f"paused in step {pause_step}, the fetch {fetch_ends} in step {fetch_step}"
        assert not decoder.scheduler.has_pending_push_work(), case
        if empties_cache:
            decoder.own_scheduler.before_cache_reset(lambda _: [])
            for request in list(decoder.running):
                decoder.preempt(request.request_id)
            assert len(decoder.free_blocks) == decoder.block_count, case
        decoder.paused = False
        world.steps(STEPS)
        assert decoder.ended["first"].name == "FINISHED_LENGTH_CAPPED", case
        assert decoder.at_rest(), case


def test_should_keep_what_is_compared_when_the_request_ends_before_the_fetch(engine: EngineMaker) -> None:
    world = World(engine)
    world.add("first", max_tokens=1)
    world.step()
    own = list(world.decoder.requests["first"].blocks)
    world.steps(PASSES)
    assert "first" not in world.decoder.requests
    free = set(world.decoder.pool.free)
    world.decoder.messenger.arrive(world.fetches[0]["request"])
    world.steps(3)
    (proof,) = world.judge.seen
    compared = {place[0] for token in proof.tokens for place in token.own if place is not None}
    assert set(own) - {0} <= compared, "0 is the null block of vLLM, which this pool gives out"
    assert not compared & free
    assert world.decoder.at_rest()


def test_should_end_a_fetch_that_could_not_be_reported(engine: EngineMaker) -> None:
    world = World(engine)
    worker = world.decoder.own_worker._worker

    def ask(*_: Any, **__: Any) -> bool:
        raise ValueError("simulated")

    worker._ask = ask
    world.add("first")
    world.steps(STEPS)
    assert world.decoder.ended["first"].name == "FINISHED_LENGTH_CAPPED"
    assert world.decoder.at_rest()


def test_should_keep_the_blocks_out_of_use_when_the_messenger_is_lost(engine: EngineMaker) -> None:
    world = World(engine, extra={"on_messenger_lost": "stay"})
    world.add("first")
    world.step()
    world.decoder.messenger.refuse.add("poll")
    world.steps(STEPS)
    assert world.decoder.ended["first"].name == "FINISHED_LENGTH_CAPPED"
    pages = set(world.fetches[0]["groups"][0]["pages"])
    assert not pages & set(world.decoder.pool.free)
    assert not world.half.has_work()


def test_should_end_a_fetch_of_which_no_word_comes(engine: EngineMaker) -> None:
    world = World(engine)
    worker = world.decoder.own_worker._worker
    now_seconds = [1000.0]
    worker._now_seconds = lambda: now_seconds[0]
    world.add("first", max_tokens=1)
    world.steps(PASSES + 1)
    now_seconds[0] += worker._limits.unheard_seconds
    world.steps(3)
    assert not world.half.has_work()
    world.decoder.messenger.fail(world.fetches[0]["request"])
    world.steps(2)
    assert world.decoder.at_rest()


def test_should_prove_the_pair_anew_after_the_prefiller_restarted(engine: EngineMaker) -> None:
    world = World(engine)
    world.decoder.messenger.events.append(Connected("127.0.0.1", 14579, "a"))
    world.add("first")
    world.step()
    world.decoder.messenger.arrive(world.fetches[0]["request"])
    world.steps(STEPS)
    assert world.state() is PairState.PROVEN
    world.decoder.messenger.events.append(Connected("127.0.0.1", 14579, "b"))
    world.step()
    world.add("second")
    world.steps(2)
    assert len(world.fetches) == 2
    assert world.fetches[1]["request"] != "second"
    world.decoder.messenger.arrive(world.fetches[1]["request"])
    world.steps(STEPS)
    assert world.decoder.at_rest()


def test_should_not_count_a_verdict_from_before_the_prefiller_restarted(engine: EngineMaker) -> None:
    world = World(engine)
    world.decoder.messenger.events.append(Connected("127.0.0.1", 14579, "a"))
    world.add("first")
    world.step()
    world.decoder.messenger.events.append(Connected("127.0.0.1", 14579, "b"))
    world.step()
    world.decoder.messenger.arrive(world.fetches[0]["request"])
    world.steps(STEPS)
    assert len(world.judge.seen) == 1
    assert world.state() is PairState.UNPROVEN
    assert world.decoder.at_rest()


def test_should_shadow_a_decoder_first_request_by_one_prefiller(engine: EngineMaker) -> None:
    world = World(engine)
    both = {"do_remote_prefill": True, "prefiller": ["127.0.0.1:4000", "127.0.0.1:5000"]}
    world.decoder.add("first", TOKENS, both, max_tokens=2)
    world.step()
    (fetch,) = world.fetches
    assert fetch["promptTokenIds"]
    world.decoder.messenger.fail(fetch["request"])
    world.steps(STEPS)
    assert len(world.fetches) == 1
    assert world.decoder.ended["first"].name == "FINISHED_LENGTH_CAPPED"
    assert world.decoder.at_rest()


def test_should_fetch_as_ever_where_the_pool_has_no_room(engine: EngineMaker) -> None:
    world = World(engine, block_count=9, model_tokens_max=5 * 128)
    world.add("first")
    world.step()
    (expected,) = world.decoder.messenger.of_kind("expect")
    world.decoder.messenger.prefilled(expected["transfer"])
    world.steps(2)
    assert [each["request"] for each in world.fetches] == ["first"]


def test_should_not_shadow_what_is_computed_with_log_probabilities_of_the_prompt(engine: EngineMaker) -> None:
    world = World(engine)
    world.add("first")
    world.decoder.requests["first"].skip_reading_prefix_cache = True
    world.steps(STEPS)
    assert not world.fetches
    assert len(world.decoder.messenger.of_kind("decline")) == 1
    assert world.decoder.at_rest()
