"""The asker's side of pulls: a prompt's beginning comes from an engine that holds it, or is computed here."""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import EngineMaker
from release import Release
from simulated_engine import BLOCK_TOKENS, SimulatedEngine, remote_decode, remote_prefill
from simulated_requests import SimulatedRequest

from kv_connector import Offered

REQUEST = "cmpl-a-0-11111111"
SOURCE = {"remote_host": "127.0.0.1", "remote_port": 14580}
HINT = {"remote_kv_source": SOURCE}
PROMPT_TOKENS = 3 * BLOCK_TOKENS + 16
ASKED_TOKENS = 3 * BLOCK_TOKENS
HELD_TOKENS = 2 * BLOCK_TOKENS


@pytest.fixture
def asker(engine: EngineMaker) -> SimulatedEngine:
    made = engine("kv_both", recompute=True)
    made.own_scheduler._half._pulls._now_seconds = lambda: 0.0  # no answer is late
    return made


def results(asker: SimulatedEngine) -> dict[str, int]:
    """What requests with a hint came to; counted by the messenger with the next step."""
    due = asker.own_scheduler._half._pulls.ended
    ends = [*(each["outcome"] for each in asker.messenger.of_kind("pullEnded")), *(each.outcome for each in due)]
    return dict(Counter(ends))


def ask(asker: SimulatedEngine, params: Any = None, **more: Any) -> dict[str, Any]:
    asker.add(REQUEST, PROMPT_TOKENS, HINT if params is None else params, **more)
    asker.step()
    (asked,) = asker.messenger.of_kind("ask")
    return asked


def end(asker: SimulatedEngine) -> None:
    asker.steps(6)
    assert not asker.has_work()
    assert not asker.own_worker._worker.held()
    assert asker.messenger.leak_check().held == {"prefills": 0, "owed": 0}
    assert asker.at_rest()


def test_should_fetch_what_is_offered_and_compute_the_rest(asker: SimulatedEngine) -> None:
    asked = ask(asker)
    assert len(asked["promptTokenIds"]) == ASKED_TOKENS, "whole blocks without the last token"
    assert asked["prefillers"] == [{"host": "127.0.0.1", "port": 14580, "engineId": ""}]
    assert len(asker.free_blocks) == asker.block_count, "a question holds no page"
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    (fetch,) = asker.messenger.of_kind("fetch")
    assert (fetch["transfer"], fetch["promptDigest"]) == (asked["transfer"], asked["promptDigest"])
    assert (fetch["firstToken"], fetch["promptTokens"]) == (0, HELD_TOKENS)
    assert "promptTokenIds" not in fetch, "nothing is computed there"
    assert "answerMicros" not in fetch, "this clock stands still"
    asker.messenger.arrive(REQUEST)
    end(asker)
    assert not asker.messenger.of_kind("decline")
    assert results(asker) == {"arrived": 1}


def test_should_name_what_it_has_waited_for(asker: SimulatedEngine) -> None:
    pulls = asker.own_scheduler._half._pulls
    ask(asker)
    pulls._now_seconds = lambda: 0.1
    asker.messenger.offer(HELD_TOKENS)
    asker.step()
    pulls._now_seconds = lambda: 0.25
    asker.steps(2)
    (fetch,) = asker.messenger.of_kind("fetch")
    assert (fetch["answerMicros"], fetch["pagesMicros"]) == (100_000, 150_000)
    asker.messenger.arrive(REQUEST)
    end(asker)


def test_should_fetch_only_what_its_own_cache_lacks(asker: SimulatedEngine) -> None:
    ask(asker, cached=BLOCK_TOKENS)
    asker.messenger.offer(ASKED_TOKENS)
    asker.steps(2)
    (fetch,) = asker.messenger.of_kind("fetch")
    assert (fetch["firstToken"], fetch["promptTokens"]) == (BLOCK_TOKENS, ASKED_TOKENS)
    asker.messenger.arrive(REQUEST)
    end(asker)


@pytest.mark.parametrize("has_its_answer", [False, True])
@pytest.mark.parametrize("method", ["reload_weights", "update_weights", "start_weight_update"])
def test_should_compute_what_was_asked_for_under_other_weights(
    asker: SimulatedEngine, method: str, has_its_answer: bool
) -> None:
    """The answer is about KV of the weights before, which no digest of the present ones names."""
    asked = ask(asker)
    if has_its_answer:
        asker.messenger.offer(HELD_TOKENS)
        asker.step()
    asker.own_scheduler.on_weights_called(method, (), {}, None)
    if not has_its_answer:
        asker.messenger.offer(HELD_TOKENS)
    end(asker)
    assert not asker.messenger.of_kind("fetch")
    (declined,) = asker.messenger.of_kind("decline")
    assert (declined["transfer"], declined["promptDigest"]) == (asked["transfer"], asked["promptDigest"])
    assert results(asker) == {"misfit": 1}


@pytest.mark.parametrize("reason", ["not_held", "busy", "misfit", "unavailable", "peer_too_old", "unreachable", "late"])
def test_should_compute_what_is_not_offered(asker: SimulatedEngine, reason: str) -> None:
    ask(asker)
    asker.messenger.offer(0, reason)
    end(asker)
    assert not asker.messenger.of_kind("fetch")
    assert results(asker) == {reason: 1}


@pytest.mark.parametrize(("reason", "declines"), [("late", 1), ("unreachable", 1), ("misfit", 1), ("not_held", 0)])
def test_should_decline_what_messengers_beside_the_asked_one_may_hold(
    asker: SimulatedEngine, reason: str, declines: int
) -> None:
    """One that is named first, and is not the first of its engine, answers that nothing fits."""
    hosts = {"remote_host": "127.0.0.1:14580,127.0.0.1:14581,127.0.0.1:14582", "remote_port": 1}
    # The simulated one expects questions for engines of one messenger.
    asker.messenger._on_ask = lambda asked: asker.messenger._owed.update({asked["request"]: "offered"})
    ask(asker, {"remote_kv_source": hosts})
    asker.messenger.offer(0, reason)
    end(asker)
    assert results(asker) == {reason: 1}
    declined = asker.messenger.of_kind("decline")
    assert [len(each["prefillers"]) for each in declined] == [3] * declines


def test_should_compute_and_decline_when_no_answer_comes_in_time(asker: SimulatedEngine) -> None:
    asked = ask(asker)
    half = asker.own_scheduler._half
    late_at_seconds = half._pulls._pulling[REQUEST].late_at_seconds
    half._pulls._now_seconds = lambda: late_at_seconds
    end(asker)
    (declined,) = asker.messenger.of_kind("decline")
    assert declined["transfer"] == asked["transfer"]
    assert results(asker) == {"late": 1}


def test_should_compute_when_the_answer_is_lost(asker: SimulatedEngine) -> None:
    asked = ask(asker)
    asker.messenger.drops.append(Offered)
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(3)
    assert REQUEST not in asker.ended
    half = asker.own_scheduler._half
    half._pulls._now_seconds = lambda late=half._pulls._pulling[REQUEST].late_at_seconds: late
    end(asker)
    (declined,) = asker.messenger.of_kind("decline")
    assert declined["transfer"] == asked["transfer"], "the other engine does not keep its pages"


def test_should_not_ask_for_what_its_own_cache_has(asker: SimulatedEngine) -> None:
    asker.add(REQUEST, PROMPT_TOKENS, HINT, cached=ASKED_TOKENS)
    end(asker)
    assert not asker.messenger.of_kind("ask")
    assert not asker.messenger.of_kind("decline")
    assert results(asker) == {"not_worth": 1}


def test_should_ask_again_once_computing_has_made_up_for_waits_in_vain(asker: SimulatedEngine) -> None:
    """A prompt that may not wait does not ask, and its compute time counts for the next ones."""
    pulls = asker.own_scheduler._half._pulls
    pulls._prices._now_seconds = lambda: pulls._now_seconds()
    ask(asker)
    pulls._now_seconds = lambda: 0.1
    asker.messenger.offer(0, "not_held")
    asker.steps(6)
    pulls.rate._seconds_per_token = 1.0 / ASKED_TOKENS
    for unasked in range(2):
        asker.add(f"cmpl-b{unasked}-0-22222222", PROMPT_TOKENS, HINT)
        asker.steps(6)
        pulls.rate._seconds_per_token = 1.0 / ASKED_TOKENS
    assert len(asker.messenger.of_kind("ask")) == 1, "0.1 s were lost; each prompt makes up for 0.05 s of its 1 s"
    asker.add("cmpl-c-0-33333333", PROMPT_TOKENS, HINT)
    asker.step()
    assert len(asker.messenger.of_kind("ask")) == 2
    asker.messenger.offer(0, "not_held")
    end(asker)


def test_should_decline_an_offer_that_is_not_worth_it(asker: SimulatedEngine) -> None:
    ask(asker, cached=BLOCK_TOKENS)
    asker.messenger.offer(BLOCK_TOKENS)
    end(asker)
    assert len(asker.messenger.of_kind("decline")) == 1
    assert results(asker) == {"not_worth": 1}


@pytest.mark.parametrize(("held_tokens", "reason"), [(2 * BLOCK_TOKENS, ""), (0, "not_held"), (None, "")])
def test_should_not_wait_again_and_again_in_vain(asker: SimulatedEngine, held_tokens: int | None, reason: str) -> None:
    """What it holds is not worth it, it holds nothing, or it is late."""
    pulls = asker.own_scheduler._half._pulls
    pulls._prices._now_seconds = lambda: pulls._now_seconds()
    ask(asker, cached=2 * BLOCK_TOKENS)
    pulls._now_seconds = lambda: 10.0 if held_tokens is None else 0.1
    if held_tokens is not None:
        asker.messenger.offer(held_tokens, reason)
    asker.steps(6)
    asker.add("cmpl-b-0-22222222", PROMPT_TOKENS, HINT, cached=2 * BLOCK_TOKENS)
    asker.steps(6)
    assert len(asker.messenger.of_kind("ask")) == 1, "computed without a question"
    assert results(asker)["not_worth"] == 1 + (held_tokens == 2 * BLOCK_TOKENS)
    asker.add("cmpl-c-0-33333333", PROMPT_TOKENS, HINT)
    asker.step()
    assert len(asker.messenger.of_kind("ask")) == 2, "one that lacks more is asked for"
    asker.messenger.offer(0, "not_held")
    end(asker)


@pytest.mark.parametrize("cached_blocks", range(3))
def test_should_wait_for_less_the_less_it_can_gain(asker: SimulatedEngine, cached_blocks: int) -> None:
    pulls = asker.own_scheduler._half._pulls
    pulls.rate._seconds_per_token = 0.1 / ASKED_TOKENS
    ask(asker, cached=cached_blocks * BLOCK_TOKENS)
    limit_seconds = (3 - cached_blocks) / 3 * 0.05
    pulls._now_seconds = lambda: limit_seconds - 1e-6
    asker.steps(2)
    assert REQUEST in pulls._pulling
    pulls._now_seconds = lambda: limit_seconds + 1e-6
    end(asker)
    assert results(asker) == {"late": 1}


@pytest.mark.parametrize("params", [HINT, remote_decode(**HINT)], ids=["alone", "sent on"])
@pytest.mark.parametrize("offered", [False, True], ids=["asked", "offered"])
def test_should_decline_when_its_client_leaves(asker: SimulatedEngine, params: Any, offered: bool) -> None:
    asked = ask(asker, params)
    if offered:
        asker.messenger.offer(HELD_TOKENS)
    asker.abort(REQUEST)
    asker.step()
    for name in [name for name, kind in asker.messenger.owes().items() if kind == "prefill"]:
        asker.messenger.release(name)
    end(asker)
    assert [each["transfer"] for each in asker.messenger.of_kind("decline")] == [asked["transfer"]]
    assert not asker.messenger.of_kind("fetch")


def test_should_send_on_what_it_has_pulled(asker: SimulatedEngine) -> None:
    ask(asker, remote_decode(**HINT))
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    asker.messenger.arrive(REQUEST)
    asker.steps(4)
    chunks = asker.messenger.chunks_of(REQUEST)
    assert (chunks[0]["firstToken"], chunks[-1]["endToken"]) == (0, PROMPT_TOKENS)
    assert asker.answers[REQUEST]["do_remote_prefill"], "the send half of the request is kept"
    asker.messenger.release(REQUEST)
    end(asker)


@pytest.mark.parametrize("first", ["released", "failed", "arrived"])
def test_should_report_once_a_request_that_ends_while_it_loads_and_is_to_be_sent(
    asker: SimulatedEngine, first: str
) -> None:
    """A second report would end the engine: the simulated scheduler asserts that it knows the request."""
    ask(asker, remote_decode(**HINT))
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    asker.abort(REQUEST)
    asker.step()
    assert asker.own_worker._worker._ended_loading.has(asker.messenger.by_name.number(REQUEST))
    finish = {"released": asker.messenger.release, "failed": asker.messenger.fail, "arrived": asker.messenger.arrive}
    last = "failed" if first == "released" else "released"
    finish[first](REQUEST)
    asker.step()
    assert REQUEST in asker.requests, "its pages may still be read or written to"
    finish[last](REQUEST)
    end(asker)


def test_should_report_once_a_request_that_ends_while_its_load_is_being_reported(asker: SimulatedEngine) -> None:
    ask(asker, remote_decode(**HINT))
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    asker.messenger.arrive(REQUEST)
    output = asker._schedule()
    output.kv_connector_metadata = asker.scheduler.build_connector_meta(output)
    asker.messenger.by_name.learn(output.kv_connector_metadata)
    reported = asker._execute(output)
    asker.abort(REQUEST)
    asker._update(output, reported)
    asker.step()
    asker.messenger.release(REQUEST)
    end(asker)


def test_should_compute_what_did_not_come_and_not_ask_again(asker: SimulatedEngine) -> None:
    ask(asker)
    asker.messenger.offer(HELD_TOKENS)
    asker.steps(2)
    asker.messenger.fail(REQUEST)
    end(asker)
    assert len(asker.messenger.of_kind("ask")) == 1
    assert results(asker) == {"failed": 1}


@pytest.mark.parametrize(
    "source",
    ["x", {}, {"remote_host": 7}, {**SOURCE, "remote_port": 0}, {**SOURCE, "remote_host": ","}, {"remote_host": "a b"}],
    ids=str,
)
def test_should_compute_where_the_hint_cannot_be_read(
    asker: SimulatedEngine, caplog: pytest.LogCaptureFixture, source: Any
) -> None:
    asker.add(REQUEST, PROMPT_TOKENS, {"remote_kv_source": source})
    end(asker)
    assert not asker.messenger.of_kind("ask")
    assert results(asker) == {"malformed": 1}
    assert "kv_transfer_params.remote_kv_source" in caplog.text


def test_should_not_ask_where_a_failed_load_would_fail_the_request(engine: EngineMaker) -> None:
    asker = engine("kv_both")
    asker.add(REQUEST, PROMPT_TOKENS, HINT)
    end(asker)
    assert not asker.messenger.of_kind("ask")
    assert results(asker) == {"policy_fail": 1}


@pytest.mark.parametrize("both_ways", [(True,), (False,), (False, True), (False, False)])
def test_should_pull_no_beginning_whose_kv_depends_on_what_follows(
    vllm_release: Release, both_ways: tuple[bool, ...]
) -> None:
    assert vllm_release
    rules, groups, options = (
        importlib.import_module(f"kv_connector.{name}")
        for name in ("vllm.pull_rules", "vllm.kv_groups", "configuration.options")
    )
    config: Any = SimpleNamespace(aux_output_config=SimpleNamespace(enabled=False), speculative_config=None)
    both = options.Options(engine_id="e", role="both")
    facts: Any = SimpleNamespace(
        options=both, kv_groups=[groups.KvGroup(("layer",), 16, both_ways=each) for each in both_ways]
    )
    made = rules.pull_rules(config, facts, "recompute", logging.getLogger("test"))
    assert {made.asks_none_because, made.offers_none_because} == {"misfit" if any(both_ways) else ""}


@pytest.mark.parametrize("enabled", [True, False])
def test_should_not_ask_where_more_is_kept_of_each_token_than_its_kv(vllm_release: Release, enabled: bool) -> None:
    """vLLM 0.32 ends where it lacks the experts of a cached token, which are not pulled."""
    assert vllm_release
    rules, groups, options = (
        importlib.import_module(f"kv_connector.{name}")
        for name in ("vllm.pull_rules", "vllm.kv_groups", "configuration.options")
    )
    config: Any = SimpleNamespace(aux_output_config=SimpleNamespace(enabled=enabled), speculative_config=None)
    both, group = options.Options(engine_id="e", role="both"), groups.KvGroup(("layer",), 16)
    facts: Any = SimpleNamespace(options=both, kv_groups=[group])
    made = rules.pull_rules(config, facts, "recompute", logging.getLogger("test"))
    assert (made.asks_none_because, made.offers_none_because) == ("misfit" if enabled else "", "")


def test_should_not_ask_where_pulls_are_off(engine: EngineMaker) -> None:
    asker = engine("kv_both", recompute=True, extra={"pulls": "off"})
    asker.add(REQUEST, PROMPT_TOKENS, HINT)
    end(asker)
    assert results(asker) == {"off": 1}


def test_should_not_ask_for_a_prompt_that_is_fetched(asker: SimulatedEngine) -> None:
    asker.add(REQUEST, PROMPT_TOKENS, {**remote_prefill(), **HINT})
    asker.steps(2)
    asker.messenger.arrive(REQUEST)
    end(asker)
    assert not asker.messenger.of_kind("ask")


def test_should_name_another_prompt_by_another_salt(asker: SimulatedEngine) -> None:
    digests = []
    for salt in (None, "a", "b"):
        request = SimulatedRequest(f"cmpl-{salt}-0-11111111", PROMPT_TOKENS, HINT, 1, 0, cache_salt=salt)
        asker.requests[request.request_id] = request
        asker.waiting.append(request)
        asker.scheduler.on_new_request(request)
        asker.step()
        digests.append(asker.messenger.of_kind("ask")[-1]["promptDigest"])
        asker.messenger.offer(0, "not_held")
        end(asker)
    assert len(set(digests)) == 3
