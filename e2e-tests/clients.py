"""Clients of everyday traffic: they send what `traffic` has drawn, as a router would, and say what is wrong."""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bed import PREFILL_LEG, Messenger, decode_leg
from conftest import Reference
from faults import ENDED_EARLY
from server_process import LOOPBACK, MODEL_NAME, REQUEST_LIMIT_SECONDS
from traffic import ANSWER_TOKENS, Asked, Group, Order

GROUPS_IN_FLIGHT = 4


class Leg:
    """A request to one side, whose client may go away. The answer is waited for by another thread."""

    def __init__(self, to: Messenger, body: Mapping[str, Any], request: str) -> None:
        self._connection = http.client.HTTPConnection(LOOPBACK, to.server.port, timeout=REQUEST_LIMIT_SECONDS)
        headers = {"Content-Type": "application/json", "X-Request-Id": request}
        self._connection.request("POST", "/v1/completions", json.dumps({"model": MODEL_NAME, **body}), headers)

    def answer(self) -> dict[str, Any]:
        with self._connection.getresponse() as answer:
            body = answer.read()
        self._connection.close()
        return dict(json.loads(body)) if answer.status == 200 else {"error": body.decode(errors="replace")}

    def leave(self) -> None:
        self._connection.close()


@dataclass
class Client:
    """Sends requests to both sides, as a router does."""

    prefiller: Messenger
    decoder: Messenger
    left: dict[str, Asked] = field(default_factory=dict)
    """Of which requests it did not wait for the answer, by X-Request-ID."""

    def ask(self, asked: Asked, request: str = "") -> dict[str, Any] | None:
        """The decoder's answer; None when the client went away before it."""
        request = request or f"everyday-{asked.number}-{uuid.uuid4()}"
        body = {**asked.body(), "max_tokens": ANSWER_TOKENS}
        first = {**asked.body(), "max_tokens": 1, "kv_transfer_params": dict(PREFILL_LEG)}
        leg = decode_leg(self.prefiller, request)
        if asked.order is Order.DECODER_FIRST:
            decode = Leg(self.decoder, {**body, "kv_transfer_params": leg}, request)
            prefill = Leg(self.prefiller, first, request)
        else:
            prefill = Leg(self.prefiller, first, request)
            if asked.order is Order.SERIAL:
                answered = prefill.answer()
                assert "choices" in answered, answered
                leg |= {
                    key: value for key, value in (answered["kv_transfer_params"] or {}).items() if value is not None
                }
            decode = Leg(self.decoder, {**body, "kv_transfer_params": leg}, request)
        legs = [decode] if asked.order is Order.SERIAL else [decode, prefill]
        if asked.gone_after_seconds is not None:
            time.sleep(asked.gone_after_seconds)  # a moment that was drawn, not a wait for something
            for gone in legs:
                gone.leave()
            self.left[request] = asked
            return None
        answers = [each.answer() for each in legs]
        return answers[0]


def faults_of(asked: Asked, answer: Mapping[str, Any], reference: Reference) -> list[str]:
    """What is wrong with an answer, in words."""
    if "choices" not in answer:
        return [f"{asked.described()}: {answer}"]
    expected = [reference.to(prompt, ANSWER_TOKENS) for prompt in asked.prompts for _ in range(asked.choices)]
    choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
    if len(choices) != len(expected):
        return [f"{asked.described()}: {len(choices)} answers, expected {len(expected)}"]
    found = []
    for choice, right in zip(choices, expected, strict=True):
        if choice["finish_reason"] in ENDED_EARLY:
            found.append(f"{asked.described()}: answer {choice['index']} ended by {choice['finish_reason']}")
        elif str(choice["text"]).split() != right:
            found.append(f"{asked.described()}: wrong tokens in answer {choice['index']}")
    return found


def sent_at_once(client: Client, group: Group, reference: Reference) -> list[str]:
    """All requests of the group leave when the last of their clients is there."""
    together = threading.Barrier(len(group.requests))

    def one(asked: Asked) -> list[str]:
        together.wait()
        answer = client.ask(asked)
        return [] if answer is None else faults_of(asked, answer, reference)

    with ThreadPoolExecutor(len(group.requests)) as clients:
        return [fault for faults in clients.map(one, group.requests) for fault in faults]


def faults_of_groups(client: Client, groups: Sequence[Group], reference: Reference) -> list[str]:
    """Some groups at a time, each one's requests at the same moment; what was wrong with the answers, in words."""
    with ThreadPoolExecutor(GROUPS_IN_FLIGHT) as running:
        found = running.map(lambda group: sent_at_once(client, group, reference), groups)
        return [fault for faults in found for fault in faults]


def failed(answer: Mapping[str, Any]) -> bool:
    return "choices" not in answer or answer["choices"][0]["finish_reason"] in ENDED_EARLY
