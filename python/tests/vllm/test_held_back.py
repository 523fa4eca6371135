"""Every request that the scheduler's half holds back has a deadline of its own, whatever the other side does not do.

The states are generated: each arrangement of requests against each behaviour of the other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from conftest import EngineMaker
from simulated_engine import MODEL_TOKENS_MAX, SimulatedEngine, remote_prefill

from kv_connector.naming.pair_rules import PROBE_TOKENS_MIN
from kv_connector.vllm.pair_proofs import PROBE_LIMIT_SECONDS
from kv_connector.vllm.proof_messages import Proof, Proved, ShadowProof

UNHEARD_SECONDS = 8.0
LONGEST_BLOCKS = MODEL_TOKENS_MAX // 128
REQUESTS = 7
STEP_SECONDS = 1.0
SLACK_SECONDS = 6 * STEP_SECONDS
"""What is due is seen by the next step; a request takes some to end."""

BESIDE = ("hears of no prompt", "is silent", "brings KV that is never judged", "cannot be reached", "is lost here")
"""What the other side does, or this side's messenger."""
ARRANGED = ("one", "of one pair", "of several pairs", "beyond the pool", "decoder first", "choices", "short")


class Clock:
    now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds


class NeverJudges:
    """A worker that compares nothing of what it is asked to, and says nothing of it."""

    proved: type[Proved]

    def __init__(self) -> None:
        self.asked = 0

    def keep(self, proofs: Sequence[Proof]) -> None:
        self.asked += len(proofs)

    def judge(self) -> list[Proved]:
        return []

    def compare(self, shadow: ShadowProof) -> Proved:
        self.asked += 1
        return self.proved(shadow.request, judged=False)


class World:
    """A decoder with requests of one arrangement, and a clock that all its waits go by."""

    def __init__(self, engine: EngineMaker, arranged: str, beside: str, *, stops: bool) -> None:
        blocks = {"beyond the pool": LONGEST_BLOCKS + 10, "decoder first": LONGEST_BLOCKS + 10}.get(arranged, 128)
        self.decoder: SimulatedEngine = engine("kv_consumer", block_count=blocks, extra={"on_messenger_lost": "stay"})
        self.decoder.compare_last_tokens(NeverJudges())
        self.clock = Clock()
        half, worker = self.decoder.own_scheduler._half, self.decoder.own_worker._worker
        worker._empty_steps.wait = lambda *_: None  # the clock is the test's
        half._proofs._can_stop = stops
        for each in (half._gate, half._proofs, half._shadows, worker):
            each._now_seconds = self.clock
        self._beside = beside
        self._since: dict[tuple[str, str], float] = {}
        """When each command was given, by kind and request or transfer."""
        self._seen = 0
        self.ended_after: dict[str, float] = {}
        self.limit_seconds = PROBE_LIMIT_SECONDS + SLACK_SECONDS
        if blocks < 128:
            heard = beside != "is silent" and arranged != "decoder first"  # a word of the other side lets it in
            self.limit_seconds += UNHEARD_SECONDS if heard else worker._limits.fetch_seconds
        if beside in ("is silent", "hears of no prompt"):
            self.limit_seconds += worker._limits.unheard_seconds if beside == "is silent" else UNHEARD_SECONDS
        for index in range(1 if arranged == "one" else REQUESTS):
            self.decoder.add(*_request(arranged, index))

    def step(self) -> None:
        self.clock.now_seconds += STEP_SECONDS
        self._answer()
        self.decoder.step()
        for request in self.decoder.ended.keys() - self.ended_after.keys():
            self.ended_after[request] = self.clock.now_seconds - Clock.now_seconds

    def _answer(self) -> None:
        messenger = self.decoder.messenger
        if self._beside == "is lost here":
            messenger.refuse.add("poll")
            return
        for command in messenger.commands[self._seen :]:
            named = command["request"] if command["do"] == "fetch" else command.get("transfer", "")
            self._since[command["do"], named] = self.clock.now_seconds
        self._seen = len(messenger.commands)
        for request in list(messenger.owes()):
            waits_seconds = self.clock.now_seconds - self._since["fetch", request]
            if self._beside == "hears of no prompt" and waits_seconds >= UNHEARD_SECONDS:
                messenger.fail(request, "no request with this transfer id reached the prefiller")
            elif self._beside == "cannot be reached":
                messenger.fail(request, "connection refused")
            elif self._beside == "brings KV that is never judged":
                messenger.arrive(request)
        self._answer_expectations()

    def _answer_expectations(self) -> None:
        """As docs/protocol.md has it of ``Prefilled``; where the link is lost the messenger says the same at once."""
        for (kind, transfer), since_seconds in list(self._since.items()):
            limit_seconds = UNHEARD_SECONDS if self._beside == "hears of no prompt" else 0.0
            due = self.clock.now_seconds - since_seconds >= limit_seconds
            if kind == "expect" and due and self._beside != "is silent":
                del self._since[kind, transfer]
                self.decoder.messenger.prefilled(transfer)


def _request(arranged: str, index: int) -> tuple[str, int, dict[str, Any]]:
    tokens = PROBE_TOKENS_MIN // 2 if arranged == "short" else 500
    if arranged == "choices":
        return f"{index}_chatcmpl-a-11111111", tokens, remote_prefill()
    named = f"chatcmpl-{index}-1111111{index}"
    if arranged == "decoder first":
        return named, tokens, {"do_remote_prefill": True, "prefiller": "127.0.0.1:14579"}
    if arranged == "of several pairs":
        return named, tokens, remote_prefill(remote_port=14579 + index % 2)
    return named, tokens, remote_prefill()


@pytest.mark.parametrize("stops", [True, False], ids=["the engine stops it", "it is shadowed"])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("arranged", ARRANGED)
def test_should_end_each_request_within_limits_of_its_own(
    engine: EngineMaker, arranged: str, beside: str, stops: bool
) -> None:
    world = World(engine, arranged, beside, stops=stops)
    names = set(world.decoder.requests)
    while world.ended_after.keys() < names and world.clock.now_seconds - Clock.now_seconds <= world.limit_seconds:
        world.step()
    left = names - world.ended_after.keys()
    assert not left, f"{len(left)} of {len(names)} still wait after {world.limit_seconds:g} s: {sorted(left)}"
    if beside in ("hears of no prompt", "cannot be reached"):
        while not world.decoder.at_rest() and world.clock.now_seconds - Clock.now_seconds <= world.limit_seconds:
            world.step()
        assert world.decoder.at_rest()
