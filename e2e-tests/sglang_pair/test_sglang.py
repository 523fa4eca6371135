"""A real pair of SGLang servers on CPU gives the tokens of a single SGLang and of transformers, whatever happens."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Reference
from faults import Outcome, attempt, dropped_payload, leave
from kv_connector.cli.timelines import prefills
from plain_sglang import transformers_answers
from server_process import Server, free_port, wait_until, words_of
from sglang_bed import COMPLETIONS, KV_MESSENGER, Ground, Kind, Pair, Side, give_up, start
from sglang_servers import CHUNK_TOKENS, PAGE_TOKENS
from sglang_workload import (
    ABORTED,
    AFTER_FAULTS,
    ANSWER_TOKENS,
    CACHED,
    DECODER_KILLED,
    DECODER_SHARDED,
    DROPPED,
    LEFT,
    LOAD,
    LOAD_IN_FLIGHT,
    MIXED_AT_ONCE,
    MIXED_REQUESTS,
    OVERLAPPED,
    OVERLAPPED_TOKENS,
    PREFILLER_KILLED,
    PREFILLER_SHARDED,
    PREFILLER_STAGED,
    RETRACTED_ANSWER_TOKENS,
    STAGED_AT_ONCE,
    TOKENS,
    all_prompts,
    hits,
    mixed_groups,
)
from workload import Series

pytest_plugins = ["sglang_fixtures"]
NOTICED_LIMIT_SECONDS = 600.0
"""Bounds a test that fails; the limits of the engines that would end any request are 300 s."""
TWO_RANKS = Kind(tp_size=2, holdable=True, tokenizer_workers=2)
TWO_STAGES = Kind(pp_size=2, tokenizer_workers=2)
REFUSED = "kv_messenger_fetches_refuted_total"
ARRIVED = "kv_messenger_fetches_arrived_total"
HOLD_PASSES = "KV_MESSENGER_HOLD_PASSES"
LATE_ENDS = "KV_MESSENGER_LATE_ENDS"
"""See plugins/held_layers.py and plugins/late_ends.py, which only a server can import."""
CHUNK_ENDS = [*range(CHUNK_TOKENS, OVERLAPPED_TOKENS, CHUNK_TOKENS), OVERLAPPED_TOKENS]


@pytest.fixture(scope="module")
def by_transformers(model: Path, by_sglang: Reference) -> Reference:
    prompts = all_prompts()
    answers = transformers_answers(model, prompts, [by_sglang.to(prompt) for prompt in prompts])
    return Reference(dict(zip(prompts, answers, strict=True)))


@pytest.fixture(scope="module")
def lasting() -> Iterator[ExitStack]:
    """What ends with the module: the shared pair, and a side that comes back in the place of one of its."""
    with ExitStack() as held:
        yield held


@pytest.fixture(scope="module")
def pair(ground: Ground, by_sglang: Reference, lasting: ExitStack) -> Pair:
    """The prefiller starts as users start it. `by_sglang` comes first: a third engine would only slow both down."""
    return ground.started_sides(lasting, replace(KV_MESSENGER, started_by=Server), KV_MESSENGER, "kv_messenger")


def differing(pair: Pair, series: Series, reference: Reference) -> list[str]:
    """Asks the prompts one by one; those that were answered otherwise."""
    asked = {prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)) for prompt in series.prompts()}
    return [f"{len(prompt.split())} tokens" for prompt, words in asked.items() if words != reference.to(prompt)]


def test_single_sglang_and_transformers_answer_alike(by_sglang: Reference, by_transformers: Reference) -> None:
    different = [p for p in all_prompts() if by_sglang.to(p) != by_transformers.to(p)]
    assert not different, f"{len(different)} prompts have no reference"


def test_tokens_are_those_of_a_single_sglang(pair: Pair, by_sglang: Reference) -> None:
    assert not differing(pair, TOKENS, by_sglang)
    pair.wait_at_rest()
    for side in (pair.prefiller, pair.decoder):
        side.wait_reported()


def test_pages_in_the_prefillers_cache_are_sent_without_being_computed(pair: Pair, by_sglang: Reference) -> None:
    for prompt in CACHED.prompts():
        answers = [pair.ask(prompt, ANSWER_TOKENS) for _ in range(2)]
        assert [words_of(answer) for answer in answers] == 2 * [by_sglang.to(prompt)]
        cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]  # came in the metadata buffers
        assert cached == (len(prompt.split()) - 1) // PAGE_TOKENS * PAGE_TOKENS
    pair.wait_at_rest()


def test_two_or_three_passes_behind_a_cached_beginning(pair: Pair, by_sglang: Reference) -> None:
    """SGLang sends the cached pages inside the first of these passes."""
    answers = {prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)) for prompt in hits()}
    assert [len(prompt.split()) for prompt, words in answers.items() if words != by_sglang.to(prompt)] == []
    pair.wait_at_rest()


def test_prompts_that_share_beginnings_asked_at_the_same_moment(pair: Pair, by_sglang: Reference) -> None:
    wrong = []
    with ThreadPoolExecutor(MIXED_AT_ONCE) as pool:
        for group in mixed_groups():
            answers = pool.map(lambda prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)), group)
            wrong += [p for p, words in zip(group, answers, strict=True) if words != by_sglang.to(p)]
    assert [len(prompt.split()) for prompt in wrong] == [], f"{len(wrong)} of {MIXED_REQUESTS} answers differ"
    pair.wait_at_rest()


def test_layers_leave_before_their_forward_pass_ends(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """Passes are held, so that it is not a race: a layer that does not leave in its pass does so at the end only."""
    port, file = free_port(), ground.folder / "hold-passes"
    kind = Kind(plugins=("held_layers",), environment={HOLD_PASSES: str(file)})
    prefiller = ground.side("prefill", kind, port, name="held-prefill")
    start(stack, [prefiller.server])
    held = replace(pair, prefiller=prefiller, bootstrap_port=port)
    file.touch()
    try:
        assert_right_one_by_one(held, OVERLAPPED, by_sglang)
    finally:
        file.unlink()
    held.wait_at_rest()
    sent = prefills(prefiller.server.log()).values()
    assert len(sent) == len(OVERLAPPED.lengths)
    for timeline in sent:
        chunks = timeline.computed()
        assert [chunk.end_token for chunk in chunks] == CHUNK_ENDS, "SGLang's passes were not told before they ran"
        assert all(chunk.left_early() >= len(chunk.layers) - 1 > 0 for chunk in chunks)


def test_tokens_differ_when_the_bytes_are_dropped(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """The comparison can fail: everything but the payload crosses. The prefiller samples the first token itself."""
    port = free_port()
    faulty = Kind(options={"jvm_options": dropped_payload()})
    dropping = ground.side("prefill", faulty, port, name="dropping-prefill")
    start(stack, [dropping.server])
    dropped = replace(pair, prefiller=dropping, bootstrap_port=port)
    for prompt in DROPPED.prompts():
        words = dropped.attempt_both_sides(prompt, ANSWER_TOKENS, f"dropped-{uuid.uuid4()}").words
        assert words is not None
        assert words[0] == by_sglang.to(prompt)[0]
        assert words[1:] != by_sglang.to(prompt)[1:]


def test_no_wrong_token_comes_of_kv_that_the_decoder_computes_otherwise(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """A prefiller with other weights, of which its settings and its files say nothing."""
    port = free_port()
    wrong = ground.side("prefill", Kind(other_weights=True), port, name="other-weights-prefill")
    start(stack, [wrong.server])
    deceived = replace(pair, prefiller=wrong, bootstrap_port=port)
    refused = pair.decoder.metric(REFUSED)
    outcomes = [
        deceived.attempt_both_sides(prompt, ANSWER_TOKENS, f"deceived-{uuid.uuid4()}")
        for prompt in reversed(TOKENS.prompts())  # the longest first: a short one would be answered
    ]
    assert all(outcome.failed for outcome in outcomes), outcomes
    assert "K of layer 1 differs" in outcomes[0].detail
    assert all("compute different KV" in outcome.detail for outcome in outcomes)
    assert pair.decoder.metric(REFUSED) == refused + len(outcomes) - 1, "only the first one was fetched"
    assert not differing(pair, TOKENS, by_sglang), "the right prefiller serves the same decoder"
    assert "compute the same KV" in pair.decoder.server.log()
    pair.wait_at_rest()


def test_prefiller_of_one_rank_fills_a_decoder_of_two(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    sharded = ground.side("decode", TWO_RANKS, name="decode-tp2")
    start(stack, [sharded.server])
    assert_right_across_shardings(replace(pair, decoder=sharded), DECODER_SHARDED, by_sglang)


def test_prefiller_of_two_stages_fills_a_decoder_of_one(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """One by one, then with both stages at work on different requests, then out of their caches."""
    port = free_port()
    prefiller = ground.side("prefill", TWO_STAGES, port, name="prefill-pp2")
    start(stack, [prefiller.server])
    staged = replace(pair, prefiller=prefiller, bootstrap_port=port)
    assert prefiller.server.log().count("layers leave while the forward pass runs") == TWO_STAGES.pp_size
    assert_right_one_by_one(staged, PREFILLER_STAGED, by_sglang)
    prompts = STAGED_AT_ONCE.prompts()
    with ThreadPoolExecutor(len(prompts)) as pool:
        legs = sent(pool, staged, prompts)
        assert [leg.result().words for leg in legs.values()] == [by_sglang.to(prompt) for prompt in prompts]
    assert_right_one_by_one(staged, PREFILLER_STAGED, by_sglang)
    # Pages, not layer writes: a stage whose grant comes late sends a layer's pages of two chunks as one.
    first, last = prefiller.metric_by_rank("kv_messenger_pages_sent_total")
    assert first == last > 0, "the model's layers are cut into halves"
    staged.wait_at_rest()


def test_decoder_of_two_stages_is_filled_by_prefillers_of_one_and_of_two(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """Requests end on both stages alike, also those that are given up: one that a stage kept would keep its pages."""
    decoder = ground.side("decode", TWO_STAGES, name="decode-pp2")
    start(stack, [decoder.server])
    unequal = replace(pair, decoder=decoder)
    assert_right_one_by_one(unequal, PREFILLER_STAGED, by_sglang)
    for _ in range(2):  # together more pages than a stage has
        assert_all_given_up(unequal, ABORTED.prompts()[:6])
    port = free_port()
    prefiller = ground.side("prefill", TWO_STAGES, port, name="prefill-pp2-equal")
    start(stack, [prefiller.server])
    equal = replace(unequal, prefiller=prefiller, bootstrap_port=port)
    prompts = STAGED_AT_ONCE.prompts()
    for staged in (unequal, equal):
        with ThreadPoolExecutor(len(prompts)) as pool:
            legs = sent(pool, staged, prompts)
            assert [leg.result().words for leg in legs.values()] == [by_sglang.to(prompt) for prompt in prompts]
        staged.wait_at_rest()


def assert_all_given_up(pair: Pair, prompts: list[str]) -> None:
    """Halfway, by a decoder that has pages for all; with stages, it says nothing of its queues while it waits."""
    with ThreadPoolExecutor(len(prompts)) as pool, pair.halfway() as wait_begun:
        legs = sent(pool, pair, prompts)
        wait_begun()
        wait_until(
            lambda: pair.prefiller.queued("prefill_inflight_queue_reqs") == len(prompts),
            NOTICED_LIMIT_SECONDS,
            "all are granted pages and computed",
        )
        for name in legs:
            give_up(name, (pair.decoder,))
        pair.gate.open()
        assert all(leg.result(NOTICED_LIMIT_SECONDS).failed for leg in legs.values())
    pair.wait_at_rest()


def assert_right_one_by_one(pair: Pair, series: Series, reference: Reference) -> None:
    for prompt in series.prompts():
        outcome = pair.attempt_both_sides(prompt, ANSWER_TOKENS, f"sharded-{uuid.uuid4()}")
        assert outcome.words == reference.to(prompt), outcome.detail


def assert_right_across_shardings(pair: Pair, series: Series, reference: Reference) -> None:
    """In SGLang's pages the heads of a token lie side by side, so each token's are pieces of their own."""
    before = pair.prefiller.metric("kv_messenger_strided_pieces_sent_total")
    assert_right_one_by_one(pair, series, reference)
    assert pair.prefiller.metric("kv_messenger_strided_pieces_sent_total") > before
    pair.wait_at_rest()


def test_64_requests_8_at_a_time(pair: Pair, by_sglang: Reference) -> None:
    prompts = LOAD.prompts()
    with ThreadPoolExecutor(LOAD_IN_FLIGHT) as pool:
        answers = list(pool.map(lambda prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)), prompts))
    wrong = [f"{len(p.split())} tokens" for p, words in zip(prompts, answers, strict=True) if words != by_sglang.to(p)]
    assert not wrong, f"{len(wrong)} of {len(prompts)} answers differ: {wrong}"
    pair.wait_at_rest()


def sent(pool: ThreadPoolExecutor, pair: Pair, prompts: list[str]) -> dict[str, Future[Outcome]]:
    """Both legs of each prompt, by the name of the request."""
    named = {f"fault-{uuid.uuid4()}": prompt for prompt in prompts}
    return {name: pool.submit(pair.attempt_at_decoder, named[name], ANSWER_TOKENS, name) for name in named}


def assert_serving(pair: Pair, reference: Reference, prompts: list[str]) -> None:
    """Through the load balancer, as if nothing had happened; then nothing is held."""
    assert [words_of(pair.ask(prompt, ANSWER_TOKENS)) for prompt in prompts] == [reference.to(p) for p in prompts]
    pair.wait_at_rest()


def test_aborted_requests_leave_the_others_right_and_nothing_held(pair: Pair, by_sglang: Reference) -> None:
    """Half of the requests are given up in the middle of their transfers, at either side or at both."""
    prompts = ABORTED.prompts()
    with ThreadPoolExecutor(len(prompts)) as pool:
        with pair.halfway() as wait_begun:
            legs = sent(pool, pair, prompts)
            given_up = list(legs)[::2]
            wait_begun()
            pair.wait_all_there(len(prompts))
            both = (pair.prefiller, pair.decoder)
            for name, sides in zip(given_up, (both, both[1:], both[:1], both[1:]), strict=True):
                give_up(name, sides)
            assert legs[given_up[1]].result(NOTICED_LIMIT_SECONDS).failed, "its decoder gave it up"
            assert pair.decoder.held(), "writes are held back, and nothing is confirmed"
        outcomes = {name: leg.result() for name, leg in legs.items()}
    for (name, outcome), prompt in zip(outcomes.items(), prompts, strict=True):
        assert outcome.failed if name in given_up else outcome.words == by_sglang.to(prompt), outcome
    pair.wait_at_rest()


def test_client_that_leaves_while_its_kv_comes_leaves_nothing_behind(pair: Pair, by_sglang: Reference) -> None:
    (prompt,), name = LEFT.prompts(), f"left-{uuid.uuid4()}"
    body = pair.body(prompt, ANSWER_TOKENS, name)
    with ThreadPoolExecutor(1) as pool, pair.halfway() as wait_begun:
        prefill = pool.submit(attempt, pair.prefiller.server.post, COMPLETIONS, body)
        leave(pair.decoder.server, body, name, wait_begun)
        wait_until(
            lambda: pair.decoder.metric("kv_messenger_pages_quarantined") > 0,
            NOTICED_LIMIT_SECONDS,
            "the decoder has given the request up, and nothing is confirmed",
        )
        pair.gate.open()
        assert prefill.result().failed, "there was no decoder to send it to"
    assert_serving(pair, by_sglang, AFTER_FAULTS.prompts()[:2])


def test_paused_decoder_has_its_requests_computed_again(pair: Pair, by_sglang: Reference) -> None:
    """As before a weight update: their pages are given up, and SGLang asks for their KV under the same room."""
    prompts, decoder = LOAD.prompts()[:2], pair.decoder.server
    expected = [words_of(pair.ask(prompt, RETRACTED_ANSWER_TOKENS)) for prompt in prompts]
    assert [words[:ANSWER_TOKENS] for words in expected] == [by_sglang.to(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(pair.ask, prompt, RETRACTED_ANSWER_TOKENS) for prompt in prompts]
        wait_until(lambda: pair.decoder.running() == len(prompts), NOTICED_LIMIT_SECONDS, "all are being answered")
        decoder.post("/pause_generation", {"mode": "retract"})
        assert not any(answer.done() for answer in answers), "the pause came too late"
        decoder.post("/continue_generation", {})
        assert [words_of(answer.result(NOTICED_LIMIT_SECONDS)) for answer in answers] == expected
    pair.wait_at_rest()


def are_answered(pair: Pair, arrived: float, legs: list[Future[Outcome]]) -> bool:
    """Whether the decoder computes all of them, whose KV was the last to arrive; also if one has ended."""
    ready = pair.decoder.metric(ARRIVED) == arrived and pair.decoder.running() == len(legs)
    return ready or any(leg.done() for leg in legs)


def test_requests_are_computed_again_while_their_first_legs_are_open(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """As where a decoder goes on after a weight update before its prefiller does, of which the clients' legs are open.

    Paused twice: the legs of the first pause are open in the second.
    """
    port, file = free_port(), ground.folder / "late-ends"
    kind = Kind(plugins=("late_ends",), environment={LATE_ENDS: str(file)})
    late = replace(pair, prefiller=ground.side("prefill", kind, port, name="late-prefill"), bootstrap_port=port)
    start(stack, [late.prefiller.server])
    prompts, names = LOAD.prompts()[:3], [f"again-{uuid.uuid4()}" for _ in range(3)]
    before = late.decoder.metric(ARRIVED)
    file.touch()
    with ThreadPoolExecutor(len(prompts)) as pool:
        legs = [
            pool.submit(late.attempt_at_decoder, prompt, RETRACTED_ANSWER_TOKENS, name)
            for prompt, name in zip(prompts, names, strict=True)
        ]
        for pause in range(2):
            due = before + (pause + 1) * len(prompts)
            wait_until(lambda due=due: are_answered(late, due, legs), NOTICED_LIMIT_SECONDS, "all are being answered")  # type: ignore[misc]
            late.decoder.server.post("/pause_generation", {"mode": "retract"})
            assert [leg.result().detail or "the pause came too late" for leg in legs if leg.done()] == []
            assert late.prefiller.queued("prefill_inflight_queue_reqs") >= len(prompts), "a first leg has ended"
            late.decoder.server.post("/continue_generation", {})
        outcomes = [leg.result(NOTICED_LIMIT_SECONDS) for leg in legs]
    file.unlink()
    answers = [(outcome.words or [outcome.detail])[:ANSWER_TOKENS] for outcome in outcomes]
    assert answers == [by_sglang.to(prompt) for prompt in prompts]
    late.wait_at_rest()


def killed_halfway(pair: Pair, side: Side, prompts: list[str]) -> None:
    """kill -9 with one request halfway and others behind it, none of which can be answered: writes are held back."""
    other = pair.decoder if side is pair.prefiller else pair.prefiller
    with ThreadPoolExecutor(len(prompts)) as pool, pair.halfway() as wait_begun:
        legs = sent(pool, pair, prompts)
        wait_begun()
        pair.wait_all_there(len(prompts), granted=True)
        killed_seconds = time.monotonic()
        side.server.kill()
        outcomes = [leg.result(NOTICED_LIMIT_SECONDS) for leg in legs.values()]
        assert all(outcome.failed for outcome in outcomes), outcomes
        last_seconds = max(outcome.at_seconds for outcome in outcomes)
        print(
            f"noticed: {side.server.name} killed: all {len(prompts)} failed after {last_seconds - killed_seconds:.2f} s"
        )
        other.wait_at_rest()
        print(f"noticed: {side.server.name} killed: nothing is held after {time.monotonic() - killed_seconds:.2f} s")


def test_killed_decoder_comes_back_at_its_address(
    pair: Pair, ground: Ground, by_sglang: Reference, lasting: ExitStack
) -> None:
    killed_halfway(pair, pair.decoder, DECODER_KILLED.prompts())
    pair.decoder = ground.side("decode", Kind(), name="decode-again", port=pair.decoder.server.port)
    start(lasting, [pair.decoder.server])
    assert_serving(pair, by_sglang, AFTER_FAULTS.prompts()[5:])


def test_killed_prefiller_comes_back_at_its_address_with_two_ranks(
    pair: Pair, ground: Ground, by_sglang: Reference, lasting: ExitStack
) -> None:
    killed_halfway(pair, pair.prefiller, PREFILLER_KILLED.prompts())
    port = pair.prefiller.server.port
    pair.prefiller = ground.side("prefill", TWO_RANKS, pair.bootstrap_port, name="prefill-tp2", port=port)
    start(lasting, [pair.prefiller.server])
    assert_serving(pair, by_sglang, AFTER_FAULTS.prompts()[2:5])
    assert_right_across_shardings(pair, PREFILLER_SHARDED, by_sglang)


def test_killed_prefiller_of_two_ranks_comes_back_at_its_address_with_one(
    pair: Pair, ground: Ground, by_sglang: Reference, lasting: ExitStack
) -> None:
    """The other direction, whichever the prefiller's ranks were before: their number is learned anew."""
    pair.prefiller.server.kill()
    port = pair.prefiller.server.port
    pair.prefiller = ground.side("prefill", Kind(), pair.bootstrap_port, name="prefill-tp1", port=port)
    start(lasting, [pair.prefiller.server])
    before = pair.prefiller.metric("kv_messenger_strided_pieces_sent_total")
    assert_serving(pair, by_sglang, AFTER_FAULTS.prompts()[:5])
    assert pair.prefiller.metric("kv_messenger_strided_pieces_sent_total") == before, "one rank's heads lie together"
