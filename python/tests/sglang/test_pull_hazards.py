"""What SGLang does beside pulls: passes that are queued, other weights, an emptied cache, answers that need pages."""

from __future__ import annotations

import random
from array import array
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.usefixtures("sglang_plugins"), pytest.mark.filterwarnings("default")]

PROMPT = list(range(1, 42))


def world() -> Any:
    from pull_world import World

    return World()


def offered(w: Any) -> Any:
    """The offer of the source for the prompt, which has come to the asker."""
    w.source.compute(PROMPT)
    pull = w.ask(PROMPT)
    w.deliver_asks()
    (offer,) = w.deliver_offers()
    return pull, offer


# ---- passes that are queued


def test_should_fetch_only_once_no_queued_pass_may_write_to_its_pages() -> None:
    """SGLang gives an aborted chunk's pages to others while its pass is queued: another engine would write earlier."""
    w = world()
    w.asker.passes.over = False
    pull, offer = offered(w)
    w.asker.poll()
    assert not w.asker.messenger.fetches
    assert pull.keeps_waiting()
    assert w.asker.pulls.landing_count() == 1
    w.asker.end_passes()
    w.asker.poll()
    w.land(offer)
    assert w.asker.cached(PROMPT) == 40
    w.assert_at_rest()


@pytest.mark.parametrize("ends", ["leave", "on_lost"])
def test_should_give_back_a_landing_that_nothing_was_fetched_into(ends: str) -> None:
    w = world()
    w.asker.passes.over = False
    pull, offer = offered(w)
    pull.leave() if ends == "leave" else w.asker.pulls.on_lost()
    assert w.asker.messenger.outcomes == ["aborted" if ends == "leave" else "unreachable"]
    w.asker.end_passes()
    w.asker.poll()
    assert not w.asker.messenger.fetches
    w.source.offers.released(offer.request)
    w.assert_at_rest()


# ---- other weights


@pytest.mark.parametrize("seed", range(20))
def test_should_know_whether_all_that_is_cached_is_of_the_current_weights(seed: int) -> None:
    """Beside a model that remembers of which weights each piece of the cache is."""
    from kv_connector.naming.cached_weights import CachedWeights

    draw, cached, now, pieces = random.Random(seed), CachedWeights(), 0, set[int]()
    for _ in range(100):
        step = draw.choice(["filled", "filled", "changed", "emptied"])
        getattr(cached, step)()
        now += step == "changed"
        pieces = set() if step == "emptied" else pieces | {now} if step == "filled" else pieces
        assert cached.are_current == (pieces <= {now})


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> Any:
    from kv_connector.naming.cached_weights import CachedWeights
    from kv_connector.sglang import weight_changes

    made = CachedWeights()
    monkeypatch.setattr(weight_changes, "CACHED", made)
    monkeypatch.setattr(weight_changes, "name", lambda: "step 7")
    return made


def test_should_offer_nothing_that_earlier_weights_computed(cached: Any) -> None:
    """An engine that was given weights without emptying its cache has both sides' name of them."""
    from kv_connector.sglang import weight_changes

    w = world()
    w.asker.weights[0] = "step 7"
    w.source.offers._weights = weight_changes.name_in_cache
    cached.filled()
    cached.changed()
    offers = []
    for _ in range(2):
        w.source.compute(PROMPT)
        w.ask(PROMPT)
        w.deliver_asks()
        offers += w.deliver_offers()
        cached.emptied()
    assert [offer.reason for offer in offers] == ["misfit", ""]
    w.land(offers[1])
    w.assert_at_rest()


@pytest.mark.parametrize("flushes", [True, False])
@pytest.mark.parametrize("success", [True, False])
def test_should_note_whether_the_cache_was_emptied_with_a_change(
    cached: Any, monkeypatch: pytest.MonkeyPatch, flushes: bool, success: bool
) -> None:
    from kv_connector.naming.changed_weights import ChangedWeights
    from kv_connector.sglang import weight_changes

    monkeypatch.setattr(weight_changes, "WEIGHTS", ChangedWeights())
    monkeypatch.setattr(weight_changes, "_version", lambda: "step 7")
    cached.filled()

    def update(*_: Any) -> Any:
        if flushes:
            cached.emptied()
        return SimpleNamespace(success=success, message="it failed on the way")

    weight_changes.note_update(update, SimpleNamespace(draft_worker=None), SimpleNamespace(weight_version="step 7"))
    assert cached.are_current == flushes


def test_should_know_what_a_pass_and_a_pull_add_to_the_cache(cached: Any) -> None:
    from kv_connector.sglang import hooks

    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend=lambda: False))
    hooks.run_batch(lambda *_: None, SimpleNamespace(), batch)
    cached.changed()
    assert not cached.are_current
    cached.emptied()
    w = world()
    _, offer = offered(w)
    w.land(offer)
    cached.changed()
    assert not cached.are_current


def test_should_compare_and_use_nothing_that_arrives_while_the_cache_is_emptied() -> None:
    """SGLang empties it after it has changed the weights: a pass would find that the source computes other KV."""
    w = world()
    w.asker.proof.proves = lambda *_: pytest.fail("compared")
    _, offer = offered(w)
    w.asker.pulls.abandon_all()
    w.land(offer)
    assert w.asker.messenger.outcomes == ["aborted"]
    assert w.asker.cached(PROMPT) == 0
    w.assert_at_rest()


# ---- an emptied cache


class Idle:
    """A scheduler that does nothing, or has a request."""

    def __init__(self, idle: bool, pulls: Any) -> None:
        from kv_connector.sglang.endpoint import TransferEndpoint

        endpoint: Any = object.__new__(TransferEndpoint)
        endpoint.prefix_pulls = pulls
        self.disagg_prefill_bootstrap_queue = SimpleNamespace(kv_manager=endpoint)
        self._engine_paused, self._idle = False, idle

    def is_fully_idle(self, **named: Any) -> bool:
        from kv_connector.sglang import hooks

        return hooks.is_fully_idle(lambda *_, **__: self._idle, self, **named)

    def flush_cache(self) -> bool:
        from kv_connector.sglang import hooks

        return bool(hooks.flush_cache(lambda scheduler: scheduler.is_fully_idle(), self))


def pulls_of(w: Any, rounds: list[int]) -> Any:
    """The pulls of the source; each round of its scheduler, what a peer has asked comes in."""
    from kv_connector.sglang.prefix_pulls import PrefixPulls

    pulls: Any = object.__new__(PrefixPulls)

    def drain() -> None:
        rounds.append(1)
        w.ask(PROMPT)
        w.deliver_asks()
        for number in w.source.messenger.withdrawn:
            w.source.offers.released(number)

    pulls._exchange, pulls._idle_wake, pulls._is_overlooked = SimpleNamespace(drain=drain), None, False
    pulls._ranks = w.source.ranks
    pulls.passes = SimpleNamespace(poll=lambda: None)
    pulls.asked_for, pulls.offers = w.source.pulls, w.source.offers
    return pulls


def test_should_empty_a_cache_that_others_never_stop_asking_for(cached: Any) -> None:
    w, rounds = world(), []
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    assert w.source.offers.held_count() == 1
    cached.filled()
    cached.changed()
    scheduler = Idle(True, pulls_of(w, rounds))
    assert scheduler.flush_cache()
    assert w.source.offers.held_count() == 0
    assert cached.are_current
    assert {offer.reason for offer in w.source.messenger.offers[1:]} == {"busy"}
    w.ask(PROMPT)
    w.deliver_asks()
    assert w.source.offers.held_count() == 1, "it answers again"


def test_should_end_no_pull_for_a_cache_that_is_not_emptied_anyway(cached: Any) -> None:
    w, rounds = world(), []
    w.source.compute(PROMPT)
    w.ask(PROMPT)
    w.deliver_asks()
    cached.filled()
    cached.changed()
    assert not Idle(False, pulls_of(w, rounds)).flush_cache()
    assert not rounds, "the scheduler does not wait"
    assert w.source.offers.held_count() == 1
    assert not cached.are_current


# ---- answers that need pages


@pytest.mark.parametrize(("requests", "reason"), [(0, ""), (2, ""), (3, "busy")])
@pytest.mark.parametrize("place", ["running", "waiting", "received"])
def test_should_leave_the_pages_that_a_decoder_keeps_for_its_answers(place: str, requests: int, reason: str) -> None:
    """SGLang ends requests whose next token finds no page."""
    from pull_world import POOL_TOKENS

    w = world()
    w.source.compute(PROMPT)
    scheduler, some = w.source.scheduler, [SimpleNamespace()] * requests
    free_count = POOL_TOKENS - 40
    scheduler.disagg_decode_prealloc_queue = SimpleNamespace(num_reserved_decode_tokens=free_count // 2)
    scheduler.running_batch = SimpleNamespace(reqs=some if place == "running" else [])
    scheduler.waiting_queue = some if place == "waiting" else []
    scheduler.disagg_decode_transfer_queue = SimpleNamespace(queue=some if place == "received" else [])
    w.ask(PROMPT)
    w.deliver_asks()
    assert [offer.reason for offer in w.source.messenger.offers] == [reason]


# ---- faults


def test_should_hold_nothing_for_an_answer_that_meets_a_fault() -> None:
    w = world()
    w.source.compute(PROMPT)

    def fault(_slots: Any) -> list[int]:
        raise RuntimeError("the device has failed")

    w.source.prefix.pages_of = fault
    w.ask(PROMPT)
    w.deliver_asks()
    assert [offer.reason for offer in w.source.messenger.offers] == ["unavailable"]
    assert w.source.offers.held_count() == 0
    w.assert_at_rest()


def test_should_compute_a_request_whose_hint_meets_a_fault() -> None:
    w = world()
    request = w.asker.request(PROMPT, 2)
    del request._compute_max_prefix_len
    assert w.asker.pulls.queued(request) is None
    assert w.asker.messenger.outcomes == ["misfit"]


def test_should_leave_the_pull_of_a_request_that_no_sender_has_claimed() -> None:
    from kv_connector.sglang import hooks
    from kv_connector.sglang.endpoint import TransferEndpoint

    w = world()
    endpoint: Any = object.__new__(TransferEndpoint)
    endpoint.next_pull = w.ask(PROMPT)
    hooks.leave_unclaimed(False, SimpleNamespace(kv_manager=endpoint), None)
    assert endpoint.next_pull is None
    assert w.asker.messenger.outcomes == ["aborted"]
    hooks.leave_unclaimed(True, SimpleNamespace(kv_manager=endpoint), None)


# ---- SGLang's own requests and settings


def own_request(tokens: list[int], **more: Any) -> Any:
    from pull_world import OF_THEIR_OWN
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    source = {"remote_kv_source": {"remote_host": "127.0.0.1", "remote_port": 2}}
    request = Req("r", "", array("q", tokens), SamplingParams(custom_params=source), vocab_size=100, **more)
    assert all(hasattr(request, name) for name in OF_THEIR_OWN), "pulls read them"
    return request


@pytest.mark.parametrize(("start", "asked"), [(None, 40), (-1, 40), (21, 20), (3, 0), (0, 0)])
def test_should_pull_no_token_whose_logprob_is_wanted(start: int | None, asked: int) -> None:
    """SGLang computes them, and uses nothing of its cache from there on."""
    w = world()
    request = own_request(PROMPT, return_logprob=start is not None)
    if start is not None:
        request.logprob_start_len = start
    assert (w.asker.pulls.queued(request) is None) == (asked == 0)
    assert [len(ask.prompt_token_ids) for ask in w.asker.messenger.asks] == ([asked] if asked else [])


@pytest.mark.parametrize(("ranks", "counts"), [({}, True), ({"tp": 1}, False), ({"pp": 1}, False)])
def test_should_count_a_request_that_comes_to_several_ranks_once(
    monkeypatch: pytest.MonkeyPatch, ranks: dict[str, int], counts: bool
) -> None:
    from dataclasses import replace

    from sglang.srt import runtime_context

    from kv_connector.sglang import pull_rules

    found = SimpleNamespace(attn_tp_rank=ranks.get("tp", 0), attn_cp_rank=0, pp_rank=ranks.get("pp", 0))
    monkeypatch.setattr(runtime_context, "get_parallel", lambda: found)
    assert pull_rules._is_first_rank() == counts
    w = world()
    w.asker.pulls._rules = replace(w.asker.rules, asks_none_because="misfit", counts=counts)
    assert w.asker.pulls.queued(w.asker.request(PROMPT, 2)) is None
    assert w.asker.messenger.outcomes == ["misfit"] * counts


@pytest.mark.parametrize("kept", ["", "enable_return_routed_experts", "enable_return_indexer_topk"])
def test_should_pull_nothing_where_more_is_kept_of_each_token_than_its_kv(
    monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """SGLang answers with what its layers chose for each token of a prompt, by the page that the token is in."""
    from sglang.srt import runtime_context

    from kv_connector.sglang import pull_rules

    one = SimpleNamespace(tp_size=1, pp_size=1, attn_cp_size=1, num_dp_ranks=1, enable_kv_cache_sharding=False)
    options = dict.fromkeys(("enable_return_routed_experts", "enable_return_indexer_topk"), False) | {kept: True}
    for name, value in {
        "get_parallel": one,
        "get_memory": SimpleNamespace(enable_hierarchical_cache=False),
        "get_exec": SimpleNamespace(features=SimpleNamespace(**options)),
    }.items():
        monkeypatch.setattr(runtime_context, name, lambda value=value: value)
    arguments = SimpleNamespace(disable_radix_cache=False, speculative_algorithm=None)
    assert bool(pull_rules._unfit(arguments, "prefill", 1)) == bool(kept)


@pytest.mark.parametrize(
    ("changed", "pools", "sentence"),
    [
        ({"tp_size": 2}, 1, ""),
        ({"pp_size": 4}, 1, "--pp-size is 4, expected 1"),
        ({"attn_cp_size": 2}, 1, "--attn-cp-size is 2, expected 1"),
        ({"enable_kv_cache_sharding": True}, 1, "--enable-kv-cache-sharding is on, expected off"),
        ({"num_dp_ranks": 8}, 1, "--dp-size is 8, expected 1"),
        ({}, 2, "the model's KV is in 2 pools, expected 1"),
        ({"disable_radix_cache": True}, 1, "start it with --disaggregation-decode-enable-radix-cache"),
        ({"speculative_algorithm": "EAGLE"}, 1, "--speculative-algorithm is EAGLE, expected none: leave it out"),
        ({"enable_hierarchical_cache": True}, 1, "--enable-hierarchical-cache is set"),
        ({}, 1, ""),
    ],
)
def test_should_name_the_option_that_keeps_an_engine_from_pulls(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], pools: int, sentence: str
) -> None:
    from sglang.srt import runtime_context

    from kv_connector.sglang import pull_rules

    features = {"enable_return_routed_experts": False, "enable_return_indexer_topk": False}
    sizes = dict.fromkeys(("tp_size", "pp_size", "attn_cp_size", "num_dp_ranks"), 1)
    features |= dict.fromkeys(("enable_hierarchical_cache", "disable_radix_cache", "enable_kv_cache_sharding"), False)
    usual = {**sizes, **features, "speculative_algorithm": None}
    found = SimpleNamespace(**{**usual, **changed, "features": SimpleNamespace(**features)})
    for name in ("get_parallel", "get_memory", "get_exec"):
        monkeypatch.setattr(runtime_context, name, lambda: found)
    reason = pull_rules._unfit(found, "decode", pools)
    assert sentence in reason
    assert bool(reason) == bool(sentence)
