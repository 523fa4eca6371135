"""Comparisons of last tokens in both halves of the connector, in the order in which an engine calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import SimulatedEngine, remote_prefill

from kv_connector import Connected
from kv_connector.runtime.facade import Disconnected
from kv_connector.vllm.proof_messages import Proof, Proved

FINDING = "K of layer model.layers.0.self_attn.attn differs by 1.7"
TOKENS = 300


class Judge:
    """Finds what the test wants."""

    proved: type[Proved]
    """The class of the release under test."""

    def __init__(self) -> None:
        self.different: set[str] = set()
        self.seen: list[Proof] = []
        self._due: list[Proof] = []

    def keep(self, proofs: Sequence[Proof]) -> None:
        self._due = list(proofs)
        self.seen += proofs

    def judge(self) -> list[Proved]:
        due, self._due = self._due, []
        return [
            self.proved(each.request, True, *((1.7, FINDING) if each.request in self.different else ())) for each in due
        ]


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def decoder(engine: EngineMaker, judge: Judge) -> SimulatedEngine:
    made = engine("kv_consumer")
    made.compare_last_tokens(judge)
    return made


def fetched(decoder: SimulatedEngine) -> list[str]:
    return [fetch["request"] for fetch in decoder.messenger.of_kind("fetch")]


def connect(decoder: SimulatedEngine, incarnation: str) -> None:
    decoder.messenger.events.append(Connected("127.0.0.1", 14579, incarnation))


def test_should_compare_the_last_token_where_the_pass_writes_it(decoder: SimulatedEngine, judge: Judge) -> None:
    decoder.add("r", TOKENS, remote_prefill(), max_tokens=3)
    decoder.step()
    blocks = list(decoder.requests["r"].blocks)
    decoder.messenger.arrive("r")
    decoder.step()
    assert not judge.seen
    decoder.step()
    (proof,) = judge.seen
    assert list(proof.places) == [(blocks[(TOKENS - 1) // 128], (TOKENS - 1) % 128)]
    assert list(proof.blocks) == blocks
    decoder.steps(4)
    assert len(judge.seen) == 1
    assert decoder.ended["r"].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_fail_the_first_request_of_a_wrong_pair_before_it_answers_and_refuse_the_others(
    decoder: SimulatedEngine, judge: Judge, caplog: pytest.LogCaptureFixture
) -> None:
    judge.different = {"first"}
    decoder.add("first", TOKENS, remote_prefill(), max_tokens=3)
    decoder.add("second", TOKENS, remote_prefill(), max_tokens=3)
    decoder.step()
    assert fetched(decoder) == ["first"], "the second waits for the verdict"
    decoder.messenger.arrive("first")
    decoder.steps(2)
    first = decoder.ended["first"].name
    decoder.steps(3)
    assert first == "FINISHED_ERROR"
    assert decoder.ended["second"].name == "FINISHED_ERROR"
    assert fetched(decoder) == ["first"], "no KV of a refuted pair is fetched"
    assert FINDING in caplog.text
    assert [each["outcome"] for each in decoder.messenger.of_kind("compared")] == ["different"]
    assert [each["fetches"] for each in decoder.messenger.of_kind("refuted")] == [1]
    (decline,) = decoder.messenger.of_kind("decline")
    assert decline["prefillers"][0]["port"] == 14579
    assert decoder.at_rest()


def test_should_share_a_beginnings_last_token_where_another_process_may_be_there(
    decoder: SimulatedEngine, judge: Judge
) -> None:
    """A prefiller that was restarted at the same address may compute something else before it is connected."""

    def compared_with(name: str) -> int:
        decoder.add(name, 500, remote_prefill(remote_prompt_tokens=300), max_tokens=3)
        decoder.step()
        decoder.messenger.arrive(name)
        decoder.steps(6)
        assert decoder.ended[name].name == "FINISHED_LENGTH_CAPPED"
        return len(judge.seen)

    there = ("127.0.0.1", 14579)
    decoder.messenger.events.append(Connected(*there, "one"))
    seen = [compared_with("unproven"), compared_with("proven")]
    decoder.messenger.events.append(Disconnected(*there))
    decoder.step()
    seen.append(compared_with("away"))
    decoder.messenger.events.append(Connected(*there, "one"))
    decoder.step()
    seen.append(compared_with("back"))
    decoder.messenger.events.extend([Disconnected(*there), Connected(*there, "two")])
    decoder.step()
    seen.append(compared_with("another"))
    assert seen == [1, 1, 2, 2, 3]
    assert decoder.at_rest()


def test_should_compute_here_what_is_refused_where_that_is_the_policy(engine: EngineMaker, judge: Judge) -> None:
    decoder = engine("kv_consumer", recompute=True)
    decoder.compare_last_tokens(judge)
    judge.different = {"first"}
    decoder.add("first", 40, remote_prefill(), max_tokens=1)
    decoder.step()
    decoder.messenger.arrive("first")
    decoder.steps(2)
    decoder.add("second", 40, remote_prefill(), max_tokens=2)
    decoder.steps(6)
    assert decoder.ended["second"].name == "FINISHED_LENGTH_CAPPED"
    assert fetched(decoder) == ["first"]


def test_should_let_the_others_through_once_the_pair_is_proven(decoder: SimulatedEngine, judge: Judge) -> None:
    names = ["first", "second", "third"]
    for name in names:
        decoder.add(name, TOKENS, remote_prefill(), max_tokens=2)
    decoder.step()
    assert fetched(decoder) == ["first"]
    decoder.messenger.arrive("first")
    decoder.steps(3)
    assert fetched(decoder) == names
    for name in names[1:]:
        decoder.messenger.arrive(name)
    decoder.steps(4)
    assert [proof.request for proof in judge.seen] == names
    assert decoder.at_rest()


@pytest.mark.parametrize("end", ["abort", "fail", "abort after arrival"])
def test_should_let_the_others_through_when_the_first_one_ends_unjudged(decoder: SimulatedEngine, end: str) -> None:
    decoder.add("first", TOKENS, remote_prefill())
    decoder.add("second", TOKENS, remote_prefill())
    decoder.step()
    if end == "fail":
        decoder.messenger.fail("first")
    elif end == "abort":
        decoder.abort("first")
        decoder.step()
        decoder.messenger.fail("first")
    else:
        decoder.messenger.arrive("first")
        decoder.abort("first")
    decoder.steps(2)
    assert fetched(decoder) == ["first", "second"]
    decoder.messenger.arrive("second")
    decoder.steps(3)
    assert decoder.at_rest()


def test_should_compare_nothing_of_a_request_that_is_computed_here_after_its_load_failed(
    engine: EngineMaker, judge: Judge
) -> None:
    decoder = engine("kv_consumer", recompute=True)
    decoder.compare_last_tokens(judge)
    decoder.add("r", 40, remote_prefill(), max_tokens=2)
    decoder.step()
    decoder.messenger.fail("r")
    decoder.steps(5)
    assert decoder.ended["r"].name == "FINISHED_LENGTH_CAPPED"
    assert not judge.seen
    assert decoder.at_rest()


def test_should_prove_the_pair_again_after_the_prefiller_restarted(decoder: SimulatedEngine, judge: Judge) -> None:
    judge.different = {"first"}
    connect(decoder, "a")
    decoder.add("first", TOKENS, remote_prefill())
    decoder.step()
    decoder.messenger.arrive("first")
    decoder.steps(3)
    decoder.add("second", TOKENS, remote_prefill())
    decoder.steps(2)
    assert decoder.ended["second"].name == "FINISHED_ERROR"
    connect(decoder, "b")
    decoder.step()
    decoder.add("third", TOKENS, remote_prefill())
    decoder.step()
    decoder.messenger.arrive("third")
    decoder.steps(3)
    assert decoder.ended["third"].name == "FINISHED_LENGTH_CAPPED"
    assert decoder.at_rest()


def test_should_refuse_a_decoder_first_request_and_dial_its_prefiller(decoder: SimulatedEngine, judge: Judge) -> None:
    judge.different = {"first"}
    params = {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"}
    decoder.add("first", TOKENS, dict(params))
    decoder.step()
    decoder.messenger.arrive("first")
    decoder.steps(3)
    decoder.add("second", TOKENS, dict(params))
    decoder.steps(3)
    assert decoder.ended["second"].name == "FINISHED_ERROR"
    assert decoder.messenger.of_kind("decline"), "a prefiller that restarted is found by dialling it"
    assert decoder.at_rest()


@pytest.mark.parametrize("option", ["warn", "off"])
def test_should_fail_nothing_unless_asked_to(engine: EngineMaker, judge: Judge, option: str) -> None:
    decoder: Any = engine("kv_consumer", extra={"last_token_check": option})
    decoder.own_worker._part.proofs._judge = judge
    decoder.compare_last_tokens(judge)
    judge.different = {"first", "second"}
    for name in ("first", "second"):
        decoder.add(name, TOKENS, remote_prefill())
    decoder.step()
    assert fetched(decoder) == ["first", "second"]
    for name in ("first", "second"):
        decoder.messenger.arrive(name)
        decoder.steps(3)
        assert decoder.ended[name].name == "FINISHED_LENGTH_CAPPED"
    assert len(judge.seen) == (2 if option == "warn" else 0)
    assert decoder.at_rest()


def test_should_judge_the_prefiller_that_was_asked_last(decoder: SimulatedEngine, judge: Judge) -> None:
    judge.different = {"first"}
    both = {"do_remote_prefill": True, "prefiller": ["127.0.0.1:4000", "127.0.0.1:5000"]}
    decoder.add("first", TOKENS, dict(both))
    decoder.step()
    decoder.messenger.fail("first")
    decoder.steps(2)
    assert decoder.messenger.of_kind("fetch")[-1]["prefillers"][0]["port"] == 5000
    decoder.messenger.arrive("first")
    decoder.steps(3)
    assert decoder.ended["first"].name == "FINISHED_ERROR"
    for port, ends_at_once in ((5000, True), (4000, False)):
        decoder.add(f"of {port}", TOKENS, {"do_remote_prefill": True, "prefiller": f"127.0.0.1:{port}"})
        decoder.steps(2)
        assert (f"of {port}" in decoder.ended) == ends_at_once
