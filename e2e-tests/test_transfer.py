"""The KV that crosses is the right KV, all of it, layer by layer while the forward pass runs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from bed import Bed, decoder_waits, prefiller, serial, together
from conftest import Reference
from servers import words_of
from timeline import PrefillTimeline, fetches, prefills
from workload import ANSWER_TOKENS, BOTH_LEGS, DROPPED, OVERLAPPED

WAYS = {"serial": serial, "decoder waits": decoder_waits, "together": together}
KV_BYTES_A_TOKEN = 4 * 4 * 128 * 4  # layers × KV heads × (K and V of 64) × float32


def test_tokens_are_those_of_a_single_vllm(bed: Bed, reference: Reference) -> None:
    ways = list(WAYS.values())
    before = bed.external_tokens()
    received_before = bed.decoder.metric("kv_messenger_fetches_arrived_total")
    prompts = BOTH_LEGS.prompts()
    for index, prompt in enumerate(prompts):
        answer = ways[index % len(ways)](bed.prefiller, bed.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"
    assert bed.external_tokens() - before == BOTH_LEGS.attributed_tokens(), "the decoder computed prompt tokens itself"
    assert bed.decoder.metric("kv_messenger_fetches_arrived_total") - received_before == len(prompts)
    bed.prefiller.wait_at_rest()
    bed.decoder.wait_at_rest()


def test_tokens_differ_when_the_bytes_are_dropped(bed: Bed, reference: Reference, stack: ExitStack) -> None:
    """The comparison can fail: everything but the payload crosses, immediates included."""
    faulty = prefiller("prefiller-dropping", extra={"jvm_options": ["-Dkvmessenger.fault.dropPayload=true"]})
    (dropping,) = bed.started(stack, faulty)
    for prompt in DROPPED.prompts():
        before = bed.external_tokens()
        answer = serial(dropping, bed.decoder, prompt, ANSWER_TOKENS)
        assert bed.external_tokens() - before == len(prompt.split()), "the transfer did not happen at all"
        assert words_of(answer) != reference.to(prompt)


@pytest.fixture(scope="module")
def overlapped(bed: Bed, reference: Reference) -> dict[int, PrefillTimeline]:
    """Timelines by prompt length, of transfers whose pages were granted before their prefill began."""
    found = {}
    for prompt in OVERLAPPED.prompts():
        known = set(prefills(bed.prefiller.server.log()))
        answer = decoder_waits(bed.prefiller, bed.decoder, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt)
        bed.prefiller.wait_at_rest()
        (transfer,) = set(prefills(bed.prefiller.server.log())) - known
        found[len(prompt.split())] = prefills(bed.prefiller.server.log())[transfer]
    return found


@pytest.mark.parametrize("tokens", OVERLAPPED.lengths)
def test_first_layer_leaves_before_its_forward_pass_ends(overlapped: dict[int, PrefillTimeline], tokens: int) -> None:
    first = overlapped[tokens].computed()[0]
    assert first.forward_start_ns < first.layers[0].readable_ns <= first.layers[0].left_ns < first.forward_end_ns


@pytest.mark.parametrize("tokens", OVERLAPPED.lengths)
def test_all_chunks_but_the_last_leave_before_the_last_pass_ends(
    overlapped: dict[int, PrefillTimeline], tokens: int
) -> None:
    *earlier, last = overlapped[tokens].computed()
    assert len(earlier) == (tokens - 1) // 256
    assert [chunk.end_token for chunk in earlier] == [256 * (index + 1) for index in range(len(earlier))]
    assert all(chunk.wholly_left_ns() < last.forward_end_ns for chunk in earlier)


@pytest.mark.parametrize("tokens", OVERLAPPED.lengths)
def test_both_sides_agree_on_what_crossed(bed: Bed, overlapped: dict[int, PrefillTimeline], tokens: int) -> None:
    fetch = fetches(bed.decoder.server.log())[overlapped[tokens].transfer]
    pages = -(-tokens // 128)
    assert fetch.pages == pages
    assert fetch.length_bytes == pages * 128 * KV_BYTES_A_TOKEN
    assert fetch.granted_ns < overlapped[tokens].computed()[0].forward_start_ns
    assert fetch.ready_ns > overlapped[tokens].last_layer_ns()
