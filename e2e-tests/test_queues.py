"""Requests that wait in an engine's queue for longer than any limit of a transfer are served all the same."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from bed import (
    Messenger,
    decode_leg,
    decoder,
    messenger,
    prefiller,
    send_decode,
    send_prefill,
    start_messengers,
)
from conftest import Reference
from faults import Outcome, attempt, body_of
from server_process import LOOPBACK, REQUEST_LIMIT_SECONDS, wait_until
from workload import QUEUED, QUEUED_REQUESTS

GRANT_WAIT_SECONDS = 1.0
SILENCE_LIMIT_SECONDS = 120.0
"""What waits in a queue is lost with its session, and a loaded kernel may keep a messenger from any core for longer
than the default: docs/troubleshooting.md, "A peer falls silent"."""
QUEUED_SECONDS = 3 * GRANT_WAIT_SECONDS
SERVED_LIMIT_SECONDS = 600.0
ANSWER_TOKENS = 2
OCCUPYING_TOKENS = 60_000
"""An engine of one sequence is at them for longer than any limit here, however fast the machine."""
ROOM_FOR_THEM = ("--max-model-len", "65536", "--hf-overrides", json.dumps({"max_position_embeddings": 65536}))


@pytest.fixture(scope="module")
def reference(everyday_reference: Reference) -> Reference:
    return everyday_reference


@pytest.fixture(scope="module")
def narrow(model: Path, run_folder: Path) -> Iterator[tuple[Messenger, Messenger]]:
    """A prefiller and a decoder that run one request at a time."""
    extra = {"grant_wait_seconds": GRANT_WAIT_SECONDS, "silence_limit_seconds": SILENCE_LIMIT_SECONDS}
    options = {"sequences_max": 1, "arguments": ROOM_FOR_THEM}
    with ExitStack() as stack:
        source = messenger(prefiller("prefiller-narrow", extra=extra, options=options), model, run_folder)
        target = messenger(decoder("decoder-narrow", extra=extra, options=options), model, run_folder)
        start_messengers(stack, [source, target])
        yield source, target


@contextmanager
def occupied(engine: Messenger) -> Iterator[None]:
    """Meanwhile another client's request runs there, and what comes waits in the queue."""
    connection = http.client.HTTPConnection(LOOPBACK, engine.server.port, timeout=REQUEST_LIMIT_SECONDS)
    body = {**body_of("w7 w8 w9", OCCUPYING_TOKENS, {}, stream=True), "kv_transfer_params": None}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.readline()
    try:
        yield
        assert not answer.isclosed()
        assert engine.server.metric("vllm:num_requests_running") == 1, "the engine was not occupied all the time"
    finally:
        answer.close()
        connection.close()


def wait_until_queued(engine: Messenger, count: int) -> None:
    wait_until(
        lambda: engine.server.metric("vllm:num_requests_waiting") >= count,
        SERVED_LIMIT_SECONDS,
        f"{count} requests are queued at {engine.server.name}",
    )


def wait_until_granted(source: Messenger, granted_before: float) -> None:
    """Each decode leg has reached the decoder and asked for its pages, however late the kernel let it."""
    wait_until(
        lambda: source.metric("kv_messenger_grants_received_total") - granted_before >= QUEUED_REQUESTS,
        SERVED_LIMIT_SECONDS,
        f"{QUEUED_REQUESTS} requests at {source.server.name} have been granted pages",
    )


def stay_queued(engine: Messenger, count: int) -> None:
    wait_until_queued(engine, count)
    time.sleep(QUEUED_SECONDS)  # the length of the queue in time; nothing happens that could be waited for


def served(legs: list[Future[Outcome]], prompts: list[str], reference: Reference) -> None:
    ended = [leg.result(SERVED_LIMIT_SECONDS) for leg in legs]
    failed = [outcome.detail for outcome in ended if outcome.failed]
    assert not failed, f"{len(failed)} of {len(ended)} were not served, the first: {failed[0]}"
    wrong = [
        prompt
        for prompt, outcome in zip(prompts, ended, strict=True)
        if outcome.words != reference.to(prompt, ANSWER_TOKENS)
    ]
    assert not wrong, f"{len(wrong)} of {len(ended)} answers differ from a single vLLM's"


@pytest.mark.parametrize("side", ["prefiller", "decoder"])
def test_requests_queued_for_long_are_all_served(
    narrow: tuple[Messenger, Messenger], reference: Reference, side: str
) -> None:
    source, target = narrow
    prompts = QUEUED[side].prompts()
    names = [f"queued-{uuid.uuid4()}" for _ in prompts]
    granted_before = source.metric("kv_messenger_grants_received_total")
    arrived_before = target.metric("kv_messenger_fetches_arrived_total")
    with ThreadPoolExecutor(2 * QUEUED_REQUESTS) as clients:

        def prefills() -> list[Future[Outcome]]:
            return [
                clients.submit(attempt, send_prefill, source, prompt, name)
                for prompt, name in zip(prompts, names, strict=True)
            ]

        def decodes() -> list[Future[Outcome]]:
            return [
                clients.submit(attempt, send_decode, target, prompt, ANSWER_TOKENS, decode_leg(source, name), name)
                for prompt, name in zip(prompts, names, strict=True)
            ]

        with occupied(source if side == "prefiller" else target):
            if side == "prefiller":
                first, legs = prefills(), decodes()
                wait_until_granted(source, granted_before)
            else:  # the decoder says what it expects before the prefiller's limit begins to count
                legs = decodes()
                wait_until_queued(target, QUEUED_REQUESTS)
                first = prefills()
                finished = [leg.result(SERVED_LIMIT_SECONDS) for leg in first]
                assert not any(outcome.failed for outcome in finished), "a prefill failed"
            stay_queued(source if side == "prefiller" else target, QUEUED_REQUESTS)
        served(legs, prompts, reference)
        for leg in first:
            assert not leg.result(SERVED_LIMIT_SECONDS).failed
    assert target.metric("kv_messenger_fetches_arrived_total") - arrived_before == QUEUED_REQUESTS
    source.wait_at_rest()
    target.wait_at_rest()
