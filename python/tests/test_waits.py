"""Every wait in the Python halves has a deadline of its own: the waits are found in the source, not remembered.

What a half keeps for a transfer is in a collection of an object, and what blocks it is one of a few calls. Both are
read from the source here. Each has a row: what bounds it and the test in which the awaited thing does not come, or why
it is no wait. A new one without a row fails.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
SOURCES = TESTS.parent / "kv_connector"
HALVES = ("vllm", "sglang", "pulls")
COLLECTIONS = ("dict", "set", "list", "deque")
BLOCKING_CALLS = (
    "wait",
    "recv",
    "recvmsg",
    "poll",
    "sleep",
    "accept",
    "connect",
    "result",
    "fence",
    "settle",
    "gather",
)
BLOCKING_CALLS += ("wait_fenced", "synchronize", "acquire", "communicate", "select")

ENGINE = "the engine's own request: it ends each, and its end is one of its own steps"
FACT = "what is known of peers, layers or adapters: nothing is held for it"
STEP = "lives for one step of the engine"
ONE_FETCH = "vllm/test_lost_events.py::test_should_end_a_fetch_although_an_event_is_lost"
ONE_PREFILL = "vllm/test_lost_events.py::test_should_end_a_prefill_although_an_event_is_lost"
ONE_ANSWER = "vllm/test_pulls.py::test_should_compute_when_the_answer_is_lost"
ONE_OFFER = "vllm/test_offers_in_steps.py::test_should_ask_again_whether_an_offer_is_released"
PROOF = "vllm/test_lost_events.py::test_should_ask_again_for_the_proof_that_was_lost"
UNHEARD_OFFER = "sglang/test_sglang_pulls.py::test_should_end_an_offer_again_whose_release_was_not_heard"
FETCH_TWO = "test_exchange.py::test_should_ask_for_the_end_of_a_fetch_that_was_lost"
FOLLOWER = "test_handover.py::test_should_not_hold_followers_of_a_lead_that_is_gone"

WAITS = {
    # What is kept until something comes: the name that bounds it in the source, and the test in which it never comes.
    "vllm/fetch_gate.py::FetchGate._queued": (
        "wait_limit_seconds",
        "vllm/test_fetch_gate.py::test_should_hold_back_within_a_limit",
    ),
    "vllm/fetch_gate.py::FetchGate._of_transfer": (
        "wait_limit_seconds",
        "vllm/test_fetch_gate.py::test_should_hold_back_within_a_limit",
    ),
    "vllm/coming_to_rest.py::ComingToRest._held_until_seconds": (
        "GRANT_WAIT_AT_REST_SECONDS",
        "vllm/test_coming_to_rest.py::test_should_hold_kv_for_a_leg_that_never_comes_for_a_short_time",
    ),
    "vllm/fetch_names.py::FetchNames._fetching": ("unheard_seconds", ONE_FETCH),
    "vllm/fetch_gate.py::FetchGate._held": ("unheard_seconds", ONE_FETCH),
    "vllm/outgoing_prefills.py::OutgoingPrefills._ended": ("unheard_seconds", ONE_PREFILL),
    "vllm/pair_proofs.py::PairProofs._held_back": (
        "PROBE_LIMIT_SECONDS",
        "vllm/test_pair_proofs.py::test_should_hold_none_back_longer_than_the_limit_however_many_go_first_and_end_unjudged",
    ),
    "vllm/pair_proofs.py::PairProofs._fetched": ("unheard_seconds", ONE_FETCH),
    "vllm/quarantine.py::Quarantine._held": ("unheard_seconds", PROOF),
    "vllm/ended_prefills.py::EndedPrefills._held": ("unheard_seconds", ONE_PREFILL),
    "vllm/scheduler_half.py::SchedulerHalf._awaited": ("unheard_seconds", ONE_FETCH),
    "vllm/scheduler_half.py::SchedulerHalf._loading_first": (
        "unheard_seconds",
        "vllm/test_held_back.py::test_should_end_each_request_within_limits_of_its_own",
    ),
    "vllm/shadow_fetches.py::ShadowFetches._shadows": (
        "VERDICT_LIMIT_SECONDS",
        "vllm/test_shadow_fetches.py::test_should_not_wait_for_a_verdict_for_ever",
    ),
    "vllm/offers.py::Offers._waiting": (
        "late_at_seconds",
        "vllm/test_offers.py::test_should_give_up_an_offer_whose_steps_never_end",
    ),
    "vllm/offers.py::Offers._carriers": (
        "CARRIER_LIMIT_SECONDS",
        "vllm/test_offers.py::test_should_run_a_question_whose_client_stays",
    ),
    "vllm/offers.py::Offers._pinned": ("unheard_seconds", ONE_OFFER),
    "vllm/offers.py::Offers._charged": ("unheard_seconds", ONE_OFFER),
    "vllm/worker_pulls.py::WorkerPulls._offers": ("unheard_seconds", ONE_OFFER),
    "vllm/worker_pulls.py::WorkerPulls._asks": ("late_at_seconds", ONE_ANSWER),
    "vllm/pulls.py::Pulls._by_ask": ("late_at_seconds", ONE_ANSWER),
    "vllm/pulls.py::Pulls._pulling": ("late_at_seconds", ONE_ANSWER),
    "vllm/ended_prefills.py::EndedPrefills._quiet": ("unheard_seconds", ONE_PREFILL),
    "vllm/ended_loading.py::EndedLoading._sending": ("unheard_seconds", ONE_PREFILL),
    "vllm/ended_loading.py::EndedLoading._loaded": ("unheard_seconds", ONE_PREFILL),
    "vllm/ended_loading.py::EndedLoading._unread": ("unheard_seconds", ONE_PREFILL),
    "vllm/worker_half.py::WorkerHalf._fetching": ("unheard_seconds", ONE_FETCH),
    "vllm/worker_half.py::WorkerHalf._quarantined": ("unheard_seconds", PROOF),
    "sglang/first_contacts.py::FirstContacts._open": (
        "FIRST_CONTACT_WAIT_SECONDS",
        "sglang/test_first_contact.py::test_should_wait_once_for_a_prefiller_that_does_not_answer",
    ),
    "sglang/exchange.py::Exchange._outgoing": (
        "unheard_seconds",
        "test_exchange.py::test_should_end_a_prefill_although_an_event_is_lost",
    ),
    "sglang/exchange.py::Exchange._incoming": ("unheard_seconds", FETCH_TWO),
    "sglang/pulls.py::Pulls._open": (
        "ask_limit_seconds",  # then as any fetch
        "sglang/test_sglang_pulls.py::test_should_be_late_after_its_limit_and_ignore_the_answer",
    ),
    "sglang/landings.py::Landings._open": ("unheard_seconds", FETCH_TWO),
    "sglang/pull_offers.py::Offers._held": ("UNHEARD_SECONDS", UNHEARD_OFFER),
    "sglang/pull_offers.py::Offers._given_at_seconds": ("UNHEARD_SECONDS", UNHEARD_OFFER),
    "sglang/prefillers.py::Prefillers._questions": (
        "LOOKUP_LIMIT_SECONDS",
        "test_sglang_prefillers.py::test_should_find_another_prefiller_while_one_does_not_answer",
    ),
    "sglang/late_declines.py::LateDeclines._leaving": (
        "LATE_LIMIT_SECONDS",
        "test_sglang_late_declines.py::test_should_decline_each_once_and_keep_none",
    ),
    # What blocks the caller.
    "vllm/worker_half.py: self._empty_steps.wait": (
        "WAIT_MAX_SECONDS",
        "vllm/test_empty_steps.py::test_should_wait_a_share_of_the_time_without_news_and_never_longer_than_the_limit",
    ),
    "vllm/own_part.py: self._empty_steps.wait": (
        "WAIT_MAX_SECONDS",
        "vllm/test_empty_steps.py::test_should_wait_a_share_of_the_time_without_news_and_never_longer_than_the_limit",
    ),
    "vllm/outgoing_prefills.py: self._client.fence": (
        "FENCE_ATTEMPTS_MAX",
        "vllm/test_lost_messenger.py::test_should_not_wait_for_ever_for_a_fence",
    ),
    "vllm/rank_start.py: lead.gather": (
        "HANDOVER_LIMIT_SECONDS",
        "test_handover.py::test_should_name_the_ranks_that_did_not_come",
    ),
    "vllm/own_part.py: self.follower.wait_fenced": ("FENCE_ATTEMPTS_MAX", FOLLOWER),  # the lead's; else it ends
    "sglang/endpoint.py: self.exchange.settle": (
        "SETTLE_LIMIT_SECONDS",
        "test_exchange.py::test_should_say_what_it_waited_for_in_vain",
    ),
    "sglang/first_contacts.py: concurrent.futures.wait": (
        "FIRST_CONTACT_WAIT_SECONDS",
        "sglang/test_first_contact.py::test_should_wait_once_for_a_prefiller_that_does_not_answer",
    ),
    "sglang/prefix_pulls.py: time.sleep": (
        "LET_GO_LIMIT_SECONDS",
        "sglang/test_prefix_pulls.py::test_should_wait_for_no_release_that_does_not_come",
    ),
    "sglang/exchange.py: self._client.fence": (
        "FENCE_LIMIT_SECONDS",
        "test_exchange.py::test_should_go_on_when_a_fence_is_not_reached",
    ),
}
NO_WAITS = {
    "vllm/connector.py::KvMessengerConnector._failed_blocks": STEP,
    "vllm/last_token_proof.py::LastTokenProof._slots": FACT,
    "vllm/last_token_proof.py::LastTokenProof._kept": STEP,
    "vllm/last_token_proof.py::StepProofs._due": STEP,
    "vllm/last_token_proof.py::StepProofs._shadows_due": STEP,
    "vllm/last_token_proof.py::StepProofs._proved": STEP,
    "vllm/last_token_proof.py::StepProofs._shadows_proved": STEP,
    "vllm/loaded_adapters.py::LoadedAdapters._loaded": FACT,
    "vllm/loaded_adapters.py::LoadedAdapters._warned": FACT,
    "vllm/outgoing_prefills.py::OutgoingPrefills._sending": ENGINE,
    "vllm/outgoing_prefills.py::OutgoingPrefills._lost": ENGINE,
    "vllm/outgoing_prefills.py::OutgoingPrefills._released_early": ENGINE,
    "vllm/pair_proofs.py::PairProofs._records": FACT,
    "vllm/prefiller_processes.py::PrefillerProcesses._incarnations": FACT,
    "vllm/prefiller_processes.py::PrefillerProcesses._away": FACT,
    "vllm/pair_proofs.py::PairProofs._judging": STEP,
    "vllm/pair_proofs.py::PairProofs._tallies": STEP,
    "vllm/request_numbers.py::RequestNumbers._numbers": ENGINE,
    "vllm/request_numbers.py::RequestNumbers._names": ENGINE,
    "vllm/request_numbers.py::RequestNumbers._new": STEP,
    "vllm/request_numbers.py::RequestNames._names": ENGINE,
    "vllm/scheduler_half.py::SchedulerHalf._prefills": ENGINE,
    "vllm/fetch_names.py::FetchNames._waiting": ENGINE,
    "vllm/shadow_fetches.py::ShadowFetches._computing": ENGINE,
    "vllm/shadow_fetches.py::ShadowFetches._to_abandon": STEP,
    "vllm/weight_changes.py::WeightChanges._noted": FACT,
    "vllm/window_blocks.py::WindowBlocks._kept": ENGINE,
    "vllm/worker_half.py::WorkerHalf._expected": "the gate's limit bounds it; a fetch or decline ends it",
    "vllm/engine_figures.py::EngineFigures._reported_gauges": FACT,
    "pulls/prefill_rate.py::PrefillRate._in_flight": FACT,
    "vllm/pulls.py::Pulls.ended": STEP,
    "vllm/connector.py: self._part.fence": "the fence of outgoing_prefills.py and of handover.py",
    "vllm/own_part.py: self.worker.fence": "the fence of outgoing_prefills.py",
    "vllm/worker_half.py: self._prefills.fence": "the fence of outgoing_prefills.py",
    "vllm/worker_half.py: self._client.poll": "takes the events that are there",
    "sglang/first_contacts.py::FirstContacts._waited_for": FACT,
    "sglang/endpoint.py::TransferEndpoint._asked_again": "a question of SGLang's own, by HTTP with SGLang's limit",
    "sglang/endpoint.py::TransferEndpoint._unfit": FACT,
    "sglang/layerwise.py::AttentionHooks._names": FACT,
    "sglang/layerwise.py::AttentionHooks.layers": FACT,
    "sglang/page_list.py::PageList._pages": ENGINE,
    "sglang/page_numbers.py::PinnedCopies._free": "memory for later passes",
    "sglang/page_numbers.py::PageNumbers._coming": "of copies that the device has queued",
    "sglang/pair_states.py::PairStates._records": FACT,
    "sglang/pair_states.py::PairStates._incarnations": FACT,
    "sglang/prefillers.py::Prefillers._known": FACT,
    "sglang/sender.py::Sender._chunks": "of passes that the device has queued; dropped when the request ends",
    "sglang/state_tensors.py::StateTensors._formats": FACT,
    "sglang/twins.py::Twins._earlier": STEP,
    "sglang/endpoint.py: contact.result": "done before",
    "sglang/prefillers.py: future.result": "done before",
    "sglang/receiver.py: self._topology.result": "done before",
    "sglang/receiver.py::Receiver._ask": ENGINE,
    "sglang/exchange.py: self._client.poll": "takes the events that are there",
    "sglang/exchange.py: time.sleep": "a part of settle",
    "sglang/exchange.py: self._messenger.wait": "for a thread of its own",
    "sglang/idle_wake.py: self._messenger.wait": "a thread of its own",
    "sglang/idle_wake.py: self._polled.wait": "a thread of its own",
    "sglang/hooks.py: pulls.poll": "takes what is there",
    "sglang/hooks.py: endpoint.prefillers.late_declines.poll": "takes what is there",
    "sglang/prefix_pulls.py: self.asked_for.poll": "takes what is there",
    "sglang/prefix_pulls.py: self.offers.poll": "takes what is there",
    "sglang/prefix_pulls.py: self.passes.poll": "takes what is there",
    "sglang/prefix_pulls.py: self.poll": "takes what is there",
    "sglang/passes.py::PassesSoFar._events": "of passes that the device has queued",
    "sglang/prefix_pulls.py::MeasuredPasses._queued": "of passes that the device has queued",
    "sglang/pull_offers.py::Offers._waiting": "of passes that the device has queued; its messenger answers for it",
    "sglang/pull_offers.py::Offers._charged": "a figure of each offer",
    "sglang/pull_offers.py::Offers._released": "numbers of what is held",
    "sglang/pull_ranks.py::PullRanks._handlers": FACT,
    "sglang/rank_decisions.py::RankDecisions._decided": "the scheduler's next round broadcasts it",
    "sglang/rank_decisions.py::RankDecisions._received": STEP,
    "sglang/pull_offers.py::Offers._questions": "at most QUESTIONS_MAX, and nothing is held for one",
    "sglang/hooks.py: request.disagg_kv_sender.poll": "SGLang's poll of a state",
    "sglang/metrics_page.py: self._ended.wait": "a thread of its own, once a second",
    "sglang/own_pass.py: stream.synchronize": "a pass of this engine's device",
    "vllm/weights.py: torch.accelerator.synchronize": "a load of this engine's device",
    "sglang/weights.py: torch.get_device_module(device).synchronize": "a load of this engine's device",
    "sglang/sender.py: self.poll": "SGLang's poll of a state",
    "sglang/sender.py: self.kv_mgr.exchange.fence": "the fence of exchange.py",
}


@functools.cache
def whole_source() -> str:
    return "".join(path.read_text() for path in SOURCES.rglob("*.py"))


def sources() -> Iterator[tuple[str, ast.Module]]:
    for half in HALVES:
        for path in sorted((SOURCES / half).glob("*.py")):
            yield f"{half}/{path.name}", ast.parse(path.read_text())


def collections(name: str, module: ast.Module) -> Iterator[str]:
    """The collections that a class's constructor makes."""
    for owner in (node for node in ast.walk(module) if isinstance(node, ast.ClassDef)):
        for made in (each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"):
            for node in ast.walk(made):
                is_typed = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
                if is_typed and ast.unparse(node.annotation).partition("[")[0] in COLLECTIONS:
                    yield f"{name}::{owner.name}.{node.target.attr}"


def blocking_calls(name: str, module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BLOCKING_CALLS:
            yield f"{name}: {ast.unparse(node.func)}"


def members() -> set[str]:
    return {
        member for name, module in sources() for member in (*collections(name, module), *blocking_calls(name, module))
    }


def test_should_know_each_wait_of_both_halves() -> None:
    listed, found = WAITS.keys() | NO_WAITS.keys(), members()
    assert sorted(found - listed) == [], "say in WAITS what bounds it, or in NO_WAITS why it is no wait"
    assert sorted(listed - found) == [], "it is not in the source any more"
    assert not WAITS.keys() & NO_WAITS.keys()


@pytest.mark.parametrize("member", WAITS)
def test_should_have_a_limit_and_a_test_in_which_nothing_comes(member: str) -> None:
    limit, shown_by = WAITS[member]
    assert limit in whole_source(), f"no {limit} in the source"
    file, _, function = shown_by.partition("::")
    assert f"def {function}" in (TESTS / file).read_text()
