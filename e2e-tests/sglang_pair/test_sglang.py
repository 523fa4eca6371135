"""A real pair of SGLang servers on CPU gives the tokens of a single SGLang and of transformers, whatever happens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Reference
from plain_sglang import sglang_answers, transformers_answers
from server_process import free_port, wait_until, words_of
from sglang_bed import KV_MESSENGER, Ground, Kind, Pair, Side, start
from sglang_servers import CHUNK_TOKENS, PAGE_TOKENS
from sglang_workload import (
    ABORTED,
    ANSWER_TOKENS,
    CACHED,
    DROPPED,
    LOAD,
    LOAD_IN_FLIGHT,
    OVERLAPPED,
    OVERLAPPED_TOKENS,
    TOKENS,
    all_prompts,
)
from timeline import prefills
from workload import Series

IN_FLIGHT_LIMIT_SECONDS = 60.0
CHUNK_ENDS = [*range(CHUNK_TOKENS, OVERLAPPED_TOKENS, CHUNK_TOKENS), OVERLAPPED_TOKENS]


@pytest.fixture(scope="module")
def by_sglang(model: Path, run_folder: Path) -> Reference:
    prompts = all_prompts()
    answers = sglang_answers(model, prompts, ANSWER_TOKENS, run_folder, lambda line: print(line, flush=True))
    return Reference(dict(zip(prompts, answers, strict=True)))


@pytest.fixture(scope="module")
def by_transformers(model: Path, by_sglang: Reference) -> Reference:
    prompts = all_prompts()
    answers = transformers_answers(model, prompts, [by_sglang.to(prompt) for prompt in prompts])
    return Reference(dict(zip(prompts, answers, strict=True)))


@pytest.fixture(scope="module")
def ground(model: Path, run_folder: Path) -> Ground:
    return Ground(model, run_folder)


@pytest.fixture(scope="module")
def pair(ground: Ground, by_sglang: Reference) -> Iterator[Pair]:
    """`by_sglang` comes first: three engines at once on two cores would only slow each other down."""
    with ExitStack() as held:
        yield ground.started_pair(held, KV_MESSENGER)


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


def test_pages_in_the_prefillers_cache_are_sent_without_being_computed(pair: Pair, by_sglang: Reference) -> None:
    for prompt in CACHED.prompts():
        answers = [pair.ask(prompt, ANSWER_TOKENS) for _ in range(2)]
        assert [words_of(answer) for answer in answers] == 2 * [by_sglang.to(prompt)]
        cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]  # came in the metadata buffers
        assert cached == (len(prompt.split()) - 1) // PAGE_TOKENS * PAGE_TOKENS
    pair.wait_at_rest()


def test_layers_leave_before_their_forward_pass_ends(pair: Pair, by_sglang: Reference) -> None:
    known = prefills(pair.prefiller.server.log()).keys()
    assert not differing(pair, OVERLAPPED, by_sglang)
    pair.wait_at_rest()
    sent = [timeline for room, timeline in prefills(pair.prefiller.server.log()).items() if room not in known]
    assert len(sent) == len(OVERLAPPED.lengths)
    for timeline in sent:
        chunks = timeline.computed()
        assert [chunk.end_token for chunk in chunks] == CHUNK_ENDS, "SGLang's passes were not told before they ran"
        assert any(chunk.left_early() for chunk in chunks)


def test_tokens_differ_when_the_bytes_are_dropped(
    pair: Pair, ground: Ground, by_sglang: Reference, stack: ExitStack
) -> None:
    """The comparison can fail: everything but the payload crosses. The prefiller samples the first token itself."""
    port = free_port()
    faulty = Kind(options={"jvm_options": ["-Dkvmessenger.fault.dropPayload=true"]})
    dropping = ground.side("prefill", faulty, port, name="dropping-prefill")
    start(stack, [dropping.server])
    dropped = replace(pair, prefiller=dropping, bootstrap_port=port)
    for prompt in DROPPED.prompts():
        words = words_of(dropped.ask_both_sides(prompt, ANSWER_TOKENS, f"dropped-{uuid.uuid4()}"))
        assert words[0] == by_sglang.to(prompt)[0]
        assert words[1:] != by_sglang.to(prompt)[1:]


def test_64_requests_8_at_a_time(pair: Pair, by_sglang: Reference) -> None:
    prompts = LOAD.prompts()
    with ThreadPoolExecutor(LOAD_IN_FLIGHT) as pool:
        answers = list(pool.map(lambda prompt: words_of(pair.ask(prompt, ANSWER_TOKENS)), prompts))
    wrong = [f"{len(p.split())} tokens" for p, words in zip(prompts, answers, strict=True) if words != by_sglang.to(p)]
    assert not wrong, f"{len(wrong)} of {len(prompts)} answers differ: {wrong}"
    pair.wait_at_rest()


def right_or_failed(answer: Mapping[str, Any], expected: list[str]) -> bool:
    """A request that could not be served may fail; it must not be answered wrongly."""
    if "choices" not in answer or answer["choices"][0]["finish_reason"] == "abort":
        return True
    return words_of(answer) == expected


def in_flight(side: Side) -> bool:
    return bool(side.held())


def disturbed(
    series: Series, ask: Callable[[str], dict[str, Any]], disturb: Callable[[], None], reference: Reference
) -> list[dict[str, Any]]:
    """Sends all prompts at once and disturbs them in flight; the answers, none of which is wrong."""
    prompts = series.prompts()
    with ThreadPoolExecutor(len(prompts)) as pool:
        legs: list[Future[dict[str, Any]]] = [pool.submit(ask, prompt) for prompt in prompts]
        disturb()
        answers = [leg.result() for leg in legs]
    wrong = [a for a, p in zip(answers, prompts, strict=True) if not right_or_failed(a, reference.to(p))]
    assert not wrong, f"{len(wrong)} of {len(prompts)} answers are wrong: {wrong[:2]}"
    return answers


def test_aborted_requests_leave_the_others_right_and_nothing_held(pair: Pair, by_sglang: Reference) -> None:
    """Half of the clients give up, at either side or at both, while the prefiller still works on all of them."""
    names = {prompt: f"abort-{uuid.uuid4()}" for prompt in ABORTED.prompts()}
    given_up = list(names.values())[::2]

    def give_up() -> None:
        wait_until(lambda: in_flight(pair.decoder), IN_FLIGHT_LIMIT_SECONDS, "the decoder waits for KV")
        for index, name in enumerate(given_up):
            if index % 3 != 1:
                pair.decoder.server.post("/abort_request", {"rid": name})
            if index % 3 != 2:
                pair.prefiller.server.post("/abort_request", {"rid": name})

    def ask(prompt: str) -> dict[str, Any]:
        return pair.ask_both_sides(prompt, ANSWER_TOKENS, names[prompt])

    answers = disturbed(ABORTED, ask, give_up, by_sglang)
    kept = [answer for answer, name in zip(answers, names.values(), strict=True) if name not in given_up]
    assert all(len(words_of(answer)) == ANSWER_TOKENS for answer in kept)
    pair.wait_at_rest()
