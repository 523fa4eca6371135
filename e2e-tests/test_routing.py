"""Requests arrive by the stock router, by the decoder-first proxy, and find the pages that either side has already."""

from __future__ import annotations

import sys
from contextlib import ExitStack

import pytest
from bed import Bed, serial, together
from conftest import ROOT, Reference
from server_process import LOOPBACK, Server, complete, free_port, start_all, words_of
from servers import router
from workload import (
    ANSWER_TOKENS,
    CACHED_ON_DECODER,
    CACHED_ON_PREFILLER,
    DECODER_FIRST,
    ROUTED,
    ROUTED_AFTER_RESTART,
    Series,
)


def routed(front: Server, series: Series, reference: Reference) -> None:
    for prompt in series.prompts():
        answer = complete(front, prompt, ANSWER_TOKENS)
        assert words_of(answer) == reference.to(prompt), f"prompt of {len(prompt.split())} tokens"


def test_stock_router_serves_serial_and_concurrent_legs_and_a_restarted_prefiller(
    bed: Bed, reference: Reference, stack: ExitStack
) -> None:
    """Its first request comes serially, later ones on both legs at once; a restart leaves it a stale identity."""
    front = router("router", [bed.prefiller.server], [bed.decoder.server], bed.folder)
    stack.callback(front.stop)
    start_all([front], print)
    before = bed.decoder.tokens_by_transfer()
    routed(front, ROUTED, reference)
    assert bed.decoder.tokens_by_transfer() - before == ROUTED.attributed_tokens()

    bed.prefiller.server.stop()
    start_all([bed.prefiller.server], print)
    before = bed.decoder.tokens_by_transfer()
    routed(front, ROUTED_AFTER_RESTART, reference)
    assert bed.decoder.tokens_by_transfer() - before == ROUTED_AFTER_RESTART.attributed_tokens()
    assert bed.decoder.metric("kv_messenger_stale_identities_total") >= 1
    bed.prefiller.wait_at_rest()
    bed.decoder.wait_at_rest()


@pytest.fixture
def proxy(bed: Bed, stack: ExitStack) -> Server:
    port = free_port()
    command = [
        *(sys.executable, str(ROOT / "examples" / "decoder_first_proxy.py"), "--port", str(port)),
        *("--decoder", bed.decoder.server.url, "--prefiller", f"{LOOPBACK}:{bed.prefiller.control_port}"),
    ]
    made = Server("decoder-first-proxy", command, port, bed.folder)
    stack.callback(made.stop)
    start_all([made], print)
    return made


def test_decoder_first_requests_reach_the_prefiller_through_the_messengers(
    bed: Bed, reference: Reference, proxy: Server
) -> None:
    before = bed.decoder.tokens_by_transfer()
    routed(proxy, DECODER_FIRST, reference)
    assert bed.decoder.tokens_by_transfer() - before == DECODER_FIRST.attributed_tokens()
    bed.prefiller.wait_at_rest()
    bed.decoder.wait_at_rest()


def test_pages_cached_on_the_prefiller_are_sent_without_being_computed(bed: Bed, reference: Reference) -> None:
    """The prefiller has the prompt from a request of its own; the decoder has nothing."""
    (prompt,) = CACHED_ON_PREFILLER.prompts()
    words_of(complete(bed.prefiller.server, prompt, 1))
    computed_before = bed.prefiller.server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    transferred_before = bed.decoder.tokens_by_transfer()
    assert words_of(together(bed.prefiller, bed.decoder, prompt, ANSWER_TOKENS)) == reference.to(prompt)
    computed = bed.prefiller.server.metric("vllm:prompt_tokens_by_source_total", source="local_compute")
    assert computed - computed_before <= 128, "the prefiller did not use its cached pages: the test shows nothing"
    assert bed.decoder.tokens_by_transfer() - transferred_before == len(prompt.split())


def test_only_pages_that_the_decoder_lacks_are_sent(bed: Bed, reference: Reference) -> None:
    """The decoder has the prompt's first pages from an earlier transfer."""
    (prompt,) = CACHED_ON_DECODER.prompts()
    beginning = " ".join(prompt.split()[:300])
    words_of(serial(bed.prefiller, bed.decoder, beginning, 1))
    before = bed.decoder.tokens_by_transfer()
    received_before = bed.decoder.metric("kv_messenger_pages_received_total")
    assert words_of(together(bed.prefiller, bed.decoder, prompt, ANSWER_TOKENS)) == reference.to(prompt)
    assert bed.decoder.tokens_by_transfer() - before == len(prompt.split()) - 256
    layers = 4
    assert bed.decoder.metric("kv_messenger_pages_received_total") - received_before == layers * (5 - 2)
