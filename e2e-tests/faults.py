"""What the tests of faults are made of: held writes, requests that may fail, clients that leave."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed import Messenger, decode_leg, send_decode, send_prefill
from prompts import random_prompt
from server_process import LOOPBACK, Server, complete, greedy_completion, wait_until

TREE = Path(__file__).resolve().parents[1]
STEP_LIMIT_SECONDS = 600.0
LEAVE_FIRST = 3
"""Writes that leave of a request that is stopped halfway: fewer than the model has layers, so never all of them."""
BUSY_TOKENS = 2000
ENDED_EARLY = ("error", "abort")
"""How the engines name the reason when a request did not run to its end."""


def fault_options(decorator: str, *more: str) -> list[str]:
    """`jvm_options` that put a fault below a messenger. Faults are in the jar of the test kit: no wheel has them."""
    jars = sorted((TREE / "connector-java" / "testkit" / "target").glob("testkit-*.jar"))
    if len(jars) != 1:
        raise FileNotFoundError(f"expected one testkit-*.jar in connector-java/testkit/target, found {jars}: make java")
    return [
        f"-Dkvmessenger.transferDecorator=io.kvmessenger.testkit.fault.{decorator}",
        f"-Dkvmessenger.transferDecoratorJar={jars[0]}",
        *more,
    ]


def dropped_payload() -> list[str]:
    """`jvm_options` of a messenger that sends everything but the payload."""
    return fault_options("DroppedPayload")


@dataclass(frozen=True)
class Gate:
    """Holds writes of a prefiller back that was started with its `jvm_options`."""

    file: Path

    @property
    def jvm_options(self) -> list[str]:
        return fault_options("HeldWrites", f"-Dkvmessenger.fault.holdWrites={self.file}")

    @contextmanager
    def closed(self, after: int = LEAVE_FIRST) -> Iterator[None]:
        """Meanwhile `after` writes leave, then none; a write is one layer of one chunk."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_suffix(".partial")
        partial.write_text(str(after), encoding="ascii")
        partial.rename(self.file)  # a reader sees the number or no file
        try:
            yield
        finally:
            self.open()

    def open(self) -> None:
        self.file.unlink(missing_ok=True)


@dataclass(frozen=True)
class Outcome:
    """How a request ended for its client."""

    words: list[str] | None
    detail: str
    at_seconds: float

    @property
    def failed(self) -> bool:
        return self.words is None


def outcome_of(answer: Mapping[str, Any]) -> Outcome:
    choices = answer.get("choices")
    if choices and choices[0]["finish_reason"] not in ENDED_EARLY:
        return Outcome(str(choices[0]["text"]).split(), "", time.monotonic())
    return Outcome(None, str(answer), time.monotonic())


@dataclass
class Pending:
    """A request on its way; `prefill` is None as long as only the decoder was asked."""

    name: str
    decode: Future[Outcome]
    prefill: Future[Outcome] | None

    def ended(self, limit_seconds: float) -> Outcome:
        return self.decode.result(limit_seconds)


class Clients:
    """Sends requests whose servers may die under them. Ends with its pool."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._count = 0

    def send(
        self, prefiller: Messenger, decoder: Messenger, prompt: str, tokens: int, *, prefill: bool = True
    ) -> Pending:
        """Both legs, or the decoder's only."""
        self._count += 1
        name = f"fault-{self._count}-{time.monotonic_ns()}"
        leg = decode_leg(prefiller, name)
        decode = self._pool.submit(attempt, send_decode, decoder, prompt, tokens, leg, name)
        return Pending(name, decode, self.prefill(prefiller, prompt, name) if prefill else None)

    def prefill(self, prefiller: Messenger, prompt: str, request: str) -> Future[Outcome]:
        """The prefiller's leg alone."""
        return self._pool.submit(attempt, send_prefill, prefiller, prompt, request)


def attempt(send: Any, *arguments: Any) -> Outcome:
    """A request to a server that may die meanwhile."""
    try:
        return outcome_of(send(*arguments))
    except (OSError, urllib.error.URLError, http.client.HTTPException) as lost:
        return Outcome(None, f"no answer: {lost!r}", time.monotonic())


def granted_without_prefill(clients: Clients, prefiller: Messenger, decoder: Messenger, prompt: str, n: int) -> Pending:
    """A request whose pages are granted while its prefill has not begun."""
    before = prefiller.metric("kv_messenger_grants_waiting")
    pending = clients.send(prefiller, decoder, prompt, n, prefill=False)
    wait_until(
        lambda: pending.decode.done() or prefiller.metric("kv_messenger_grants_waiting") > before,
        STEP_LIMIT_SECONDS,
        f"{prefiller.server.name} has the grant",
    )
    assert not pending.decode.done(), f"{pending.decode.result()}\n{decoder.server.log_tail()}"
    return pending


def sent_in_part(clients: Clients, prefiller: Messenger, decoder: Messenger, prompt: str, n: int) -> Pending:
    """A request whose prefill is over and of which LEAVE_FIRST writes have left; the gate must be closed after them.

    The grant comes first, so that each layer of a chunk is a write of its own.
    """
    before = prefiller.metric("kv_messenger_layers_sent_total")
    pending = granted_without_prefill(clients, prefiller, decoder, prompt, n)
    pending.prefill = clients.prefill(prefiller, prompt, pending.name)
    prefilled = pending.prefill.result(STEP_LIMIT_SECONDS)
    assert not prefilled.failed, prefilled
    wait_until(
        lambda: (
            pending.decode.done()
            or (
                prefiller.metric("kv_messenger_layers_sent_total") - before == LEAVE_FIRST
                and prefiller.metric("kv_messenger_writes_in_flight") > 0
            )
        ),
        STEP_LIMIT_SECONDS,
        f"{LEAVE_FIRST} writes have left",
    )
    assert not pending.decode.done(), pending.decode.result()
    return pending


def still_serves(server: Server) -> None:
    """The engine is up, and steps: what it has to tell and to free it does with this request at the latest."""
    assert server.healthy()
    assert not outcome_of(complete(server, "w9 w8 w7", 1)).failed


def leave(server: Server, body: Mapping[str, Any], request: str, stay: Any) -> None:
    """A client that goes away when `stay` returns, without an answer."""
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=STEP_LIMIT_SECONDS)
    headers = {"Content-Type": "application/json", "X-Request-Id": request}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    try:
        stay()
    finally:
        connection.close()


def body_of(prompt: str, tokens: int, leg: Mapping[str, Any], *, stream: bool) -> dict[str, Any]:
    return {**greedy_completion(prompt, tokens), "stream": stream, "kv_transfer_params": dict(leg)}


@contextmanager
def busy(side: Messenger, sequences_max: int) -> Iterator[None]:
    """The engine runs as many requests as it can, until their clients leave."""
    body = json.dumps(body_of(random_prompt(9, 4), BUSY_TOKENS, {}, stream=True))
    with ExitStack() as stack:
        for _ in range(sequences_max):
            connection = http.client.HTTPConnection(LOOPBACK, side.server.port, timeout=STEP_LIMIT_SECONDS)
            stack.callback(connection.close)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        full = lambda: side.server.metric("vllm:num_requests_running") >= sequences_max  # noqa: E731
        wait_until(full, STEP_LIMIT_SECONDS, f"{side.server.name} is full")
        yield
