"""The KV that crosses is the right KV, all of it, layer by layer while the forward pass runs; over every transport."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from bed import Bed, Messenger, decoder, decoder_waits, prefiller, serial, way_of
from conftest import ROOT, Reference
from faults import dropped_payload
from kv_connector.cli.timelines import FetchTimeline, PrefillTimeline, fetches, prefills
from prompts import random_prompt
from server_process import words_of
from workload import ANSWER_TOKENS, BOTH_LEGS, DROPPED, HELD, OVERLAPPED, OVERLAPPED_LENGTHS

CHUNK_TOKENS = 256
PAGE_TOKENS = 128
COMPARED_TOKENS = 64
LAYERS = 4
HOLD_PASSES = "KV_MESSENGER_HOLD_PASSES"
"""See held_passes.py, which only an engine can import."""
KV_BYTES_A_TOKEN = LAYERS * 4 * 128 * 4  # layers × KV heads × (K and V of 64) × float32


@dataclass(frozen=True)
class Target:
    """A decoder, and the transport by which KV must come to it."""

    transport: str
    decoder: Messenger


@pytest.fixture(scope="module", params=["shm", "tcp"])
def target(request: pytest.FixtureRequest, bed: Bed) -> Target:
    decoder = request.getfixturevalue("tcp_decoder") if request.param == "tcp" else bed.decoder
    return Target(request.param, decoder)


def test_tokens_are_those_of_a_single_vllm(bed: Bed, target: Target, reference: Reference) -> None:
    series, decoder = BOTH_LEGS[target.transport], target.decoder
    attributed_before = decoder.tokens_by_transfer()
    arrived_before = decoder.metric("kv_messenger_fetches_arrived_total")
    known = set(prefills(bed.prefiller.server.log()))
    for index, prompt in enumerate(series.prompts()):
        answer = way_of(index)(bed.prefiller, decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
    assert decoder.tokens_by_transfer() - attributed_before == series.attributed_tokens()
    assert decoder.metric("kv_messenger_fetches_arrived_total") - arrived_before == len(series.lengths)
    for engine in (bed.prefiller, decoder):
        engine.wait_at_rest()
        engine.wait_reported()
    used = {
        found.transport for transfer, found in prefills(bed.prefiller.server.log()).items() if transfer not in known
    }
    assert used == {target.transport}


@dataclass(frozen=True)
class Damaged:
    """A prefiller that sends everything but the payload, immediates included, and a decoder that compares."""

    dropping: Messenger
    comparing: Messenger


@pytest.fixture(scope="module")
def damaged(bed: Bed) -> Iterator[Damaged]:
    faulty = prefiller("prefiller-dropping", extra={"jvm_options": dropped_payload()})
    with ExitStack() as stack:
        yield Damaged(*bed.started(stack, faulty, decoder("decoder-comparing", extra={"page_checksum": "full"})))


def test_tokens_differ_when_the_bytes_are_dropped(
    tcp_decoder: Messenger, reference: Reference, damaged: Damaged
) -> None:
    """The comparison can fail."""
    for prompt in DROPPED.prompts():
        before = tcp_decoder.tokens_by_transfer()
        answer = serial(damaged.dropping, tcp_decoder, prompt, ANSWER_TOKENS)
        assert tcp_decoder.tokens_by_transfer() - before == len(prompt.split()), "the transfer did not happen at all"
        assert words_of(answer) != reference.to(prompt)


def test_no_wrong_token_comes_of_kv_that_the_decoder_computes_otherwise(bed: Bed, damaged: Damaged) -> None:
    """Until now all KV was right and none was suspected; of this prefiller all is wrong from the first request on."""
    decoder = bed.decoder
    assert decoder.metric("kv_messenger_last_tokens_compared_total", reason="different") == 0
    words_of(serial(bed.prefiller, decoder, random_prompt(COMPARED_TOKENS, 1), ANSWER_TOKENS))
    for seed in range(2, 5):
        answer = serial(damaged.dropping, decoder, random_prompt(COMPARED_TOKENS, seed), ANSWER_TOKENS)
        assert "choices" not in answer or answer["choices"][0]["finish_reason"] == "error", "wrong KV became tokens"
    assert decoder.server.log().count("is refused: the prefiller at") == 2
    words_of(serial(bed.prefiller, decoder, random_prompt(COMPARED_TOKENS, 5), ANSWER_TOKENS))
    assert decoder.metric("kv_messenger_last_tokens_compared_total", reason="equal") > 0
    assert decoder.metric("kv_messenger_last_tokens_compared_total", reason="different") == 1
    assert decoder.metric("kv_messenger_fetches_refuted_total") == 2


def test_damaged_pages_fail_their_request_where_they_are_compared(
    bed: Bed, reference: Reference, damaged: Damaged
) -> None:
    comparing = damaged.comparing
    for count, prompt in enumerate(DROPPED.prompts(), start=1):
        answer = serial(damaged.dropping, comparing, prompt, ANSWER_TOKENS)
        failed = "choices" not in answer or answer["choices"][0]["finish_reason"] == "error"
        assert failed, "wrong bytes became tokens"
        assert comparing.metric("kv_messenger_checksums_different_total") == count
        assert comparing.server.log().count("arrived damaged") >= count
    for prompt in DROPPED.prompts():
        compared_before = comparing.metric("kv_messenger_pages_compared_total")
        answer = serial(bed.prefiller, comparing, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt)
        pages = -(-len(prompt.split()) // PAGE_TOKENS) * LAYERS
        assert comparing.metric("kv_messenger_pages_compared_total") - compared_before == pages
    for side in (damaged.dropping, bed.prefiller, comparing):
        side.wait_at_rest()


@dataclass(frozen=True)
class Overlapped:
    """Both sides' timelines of a transfer whose pages were granted before its prefill began."""

    prefill: PrefillTimeline
    fetch: FetchTimeline


@pytest.fixture(scope="module")
def overlapped(bed: Bed, target: Target, reference: Reference) -> dict[int, Overlapped]:
    """By prompt length."""
    found = {}
    for prompt in OVERLAPPED[target.transport].prompts():
        known = set(prefills(bed.prefiller.server.log()))
        answer = decoder_waits(bed.prefiller, target.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt)
        bed.prefiller.wait_at_rest()
        (transfer,) = set(prefills(bed.prefiller.server.log())) - known
        prefill = prefills(bed.prefiller.server.log())[transfer]
        found[len(prompt.split())] = Overlapped(prefill, fetches(target.decoder.server.log())[transfer])
    return found


@dataclass(frozen=True)
class Held:
    """A prefiller whose forward passes stand after each layer but the last until it has left, while `file` exists."""

    prefiller: Messenger
    file: Path


@pytest.fixture(scope="module")
def held(bed: Bed) -> Iterator[Held]:
    file = bed.folder / "hold-passes"
    folders = os.pathsep.join(str(ROOT / folder) for folder in ("e2e-tests", "examples"))
    options = {"connector_module": "held_passes", "environment": {"PYTHONPATH": folders, HOLD_PASSES: str(file)}}
    with ExitStack() as stack:
        (source,) = bed.started(stack, prefiller("prefiller-held", options=options))
        yield Held(source, file)


def test_all_layers_but_the_last_leave_before_their_pass_ends(target: Target, held: Held, reference: Reference) -> None:
    """Passes are held, so that it is not a race: a layer that does not leave in its pass does so at the end only.

    A pass that is held waits for the last layers of the passes before it too: all of them leave before it ends.
    """
    (prompt,) = HELD[target.transport].prompts()
    held.file.touch()
    try:
        answer = decoder_waits(held.prefiller, target.decoder, prompt, ANSWER_TOKENS)
    finally:
        held.file.unlink()
    assert words_of(answer) == reference.to(prompt)
    held.prefiller.wait_at_rest()
    (prefill,) = [
        found for found in prefills(held.prefiller.server.log()).values() if found.transport == target.transport
    ]
    chunks = prefill.computed()
    assert [chunk.end_token for chunk in chunks] == [CHUNK_TOKENS, 2 * CHUNK_TOKENS, 700]
    assert all(chunk.forward_start_ns < chunk.layers[0].readable_ns for chunk in chunks)
    assert all(chunk.left_early() >= LAYERS - 1 for chunk in chunks), [chunk.left_early() for chunk in chunks]
    *earlier, last = chunks
    assert all(layer.left_ns < last.forward_end_ns for chunk in earlier for layer in chunk.layers)


@pytest.mark.parametrize("tokens", OVERLAPPED_LENGTHS)
def test_both_sides_agree_on_what_crossed(overlapped: dict[int, Overlapped], tokens: int) -> None:
    prefill, fetch = overlapped[tokens].prefill, overlapped[tokens].fetch
    pages = -(-tokens // PAGE_TOKENS)
    assert fetch.pages == pages
    assert fetch.length_bytes == pages * PAGE_TOKENS * KV_BYTES_A_TOKEN
    assert fetch.granted_ns < prefill.computed()[0].forward_start_ns
    assert fetch.ready_ns > prefill.last_layer_ns()
