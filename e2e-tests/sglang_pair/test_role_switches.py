"""Two SGLang servers that change roles with each other while they run: the prefiller decodes, the decoder prefills.

All requests come through SGLang's router, which is told of each change. Some are under way when one is asked for, and
the KV of one is held back until both sides have put the change off, as SGLang does until a side is idle. One more comes
during each change. `make role-switches` makes as many as `--role-switches` says, of which the tests make few.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Barrier, Event
from typing import Final

import pytest
from conftest import Reference
from faults import Gate, Outcome, attempt
from role_router import Behind, RoleRouter, router
from server_process import free_port, greedy_completion, wait_until
from sglang_bed import COMPLETIONS, Ground, Kind, Side, start
from sglang_servers import Role
from sglang_workload import AFTER_FAULTS, ANSWER_TOKENS, SWITCHED

pytest_plugins = ["sglang_fixtures"]
SWITCHING: Final = Kind(switches=True, holdable=True)
ROLES: Final[tuple[Role, Role]] = ("prefill", "decode")
SWITCHED_ROLES: Final = ROLES[::-1]
LIMIT_SECONDS: Final = 90.0
LONG_ANSWER_TOKENS: Final = 100
"""It is still being computed when a change is asked for. What is compared is its beginning."""
LATE_PROMPT, HELD_PROMPT = AFTER_FAULTS.prompts()[:2]
"""Of tests with other servers, so no cache has their beginnings."""
NO_SERVER: Final = "server_selection_failed"
"""What the router says while it has none in a role."""
CLEAN: Final = re.compile(r"the messenger of the (prefill|decode) role is closed, the leak check is clean")
CLOSED: Final = re.compile(r"the messenger of the (prefill|decode) role is closed")


@dataclass(frozen=True)
class Change:
    """Of one server's role."""

    seconds: float
    put_off: int
    """How often it was refused because requests were under way."""


@dataclass(frozen=True)
class Instance:
    """A server in either role, with the port at which it tells decoders of its messengers."""

    side: Side
    bootstrap_port: int

    @property
    def behind(self) -> Behind:
        return Behind(self.side.server, self.bootstrap_port)

    def become(self, role: str, on_put_off: Callable[[], object]) -> Change:
        """Returns when its role has changed; calls `on_put_off` when that was refused for the first time."""
        begun, put_off = 0.0, -1

        def changed() -> bool:
            nonlocal begun, put_off
            begun, put_off = time.monotonic(), put_off + 1
            answer = self.side.server.post("/pd_role_switch", {"new_role": role, "decode_cuda_graph_memory_gb": 0.0})
            if answer.get("success"):
                return True
            assert "not idle" in str(answer), answer
            if not put_off:
                on_put_off()
            return False

        wait_until(changed, LIMIT_SECONDS, f"{self.side.server.name} is a {role} server")
        return Change(time.monotonic() - begun, put_off)


@dataclass
class Two:
    """Both instances, the prefiller first, and the router in front of them."""

    roles: list[Instance]
    front: RoleRouter
    gate: Gate

    @property
    def prefiller(self) -> Side:
        return self.roles[0].side

    @property
    def decoder(self) -> Side:
        return self.roles[1].side

    def switch(self) -> list[Change]:
        """Both at the same time, and the gate opens once both were put off; then the router knows their new roles."""
        put_off = Barrier(2, action=self.gate.open, timeout=LIMIT_SECONDS)
        with ThreadPoolExecutor(2) as both:
            changes = list(both.map(lambda each, role: each.become(role, put_off.wait), self.roles, SWITCHED_ROLES))
        self.roles.reverse()
        self.front.know(*(instance.behind for instance in self.roles))
        return changes


@pytest.fixture(scope="module")
def two(ground: Ground, by_sglang: Reference) -> Iterator[Two]:
    with ExitStack() as stack:
        ports = [free_port(), free_port()]
        made = [
            Instance(ground.side(role, SWITCHING, port, name=f"switching-{role}"), port)
            for role, port in zip(ROLES, ports, strict=True)
        ]
        start(stack, [instance.side.server for instance in made])
        prefiller, decoder = (instance.behind for instance in made)
        front = router("switching-router", prefiller, [decoder], ground.folder)
        start(stack, [front.server])
        front.wait_knowing([(prefiller.server.url, "prefill"), (decoder.server.url, "decode")])
        yield Two(made, front, ground.gate)


def under_way(pool: ThreadPoolExecutor, two: Two) -> list[tuple[str, Future[Outcome]]]:
    """Requests whose KV has arrived, so that both sides know all of them; their answers are still being computed."""
    asked = []
    before = two.decoder.metric("kv_messenger_fetches_arrived_total")
    for prompt in SWITCHED.prompts():
        body = greedy_completion(prompt, LONG_ANSWER_TOKENS)
        asked.append((prompt, pool.submit(attempt, two.front.server.post, COMPLETIONS, body)))
    wait_until(
        lambda: two.decoder.metric("kv_messenger_fetches_arrived_total") - before >= len(asked),
        LIMIT_SECONDS,
        "all of the KV has arrived",
    )
    return asked


def held_under_way(pool: ThreadPoolExecutor, two: Two) -> Future[Outcome]:
    """A request of which only the first layers arrive until the gate is opened."""
    body = greedy_completion(HELD_PROMPT, LONG_ANSWER_TOKENS)
    asked = pool.submit(attempt, two.front.server.post, COMPLETIONS, body)
    wait_until(
        lambda: asked.done() or two.prefiller.metric("kv_messenger_writes_in_flight") > 0,
        LIMIT_SECONDS,
        "a part of the KV has left",
    )
    assert not asked.done(), asked.result()
    return asked


def asked_until_taken(front: RoleRouter, turned_away: Event) -> Outcome:
    """The answer to a client that asks again as long as the router has no server."""
    outcomes: list[Outcome] = []

    def taken() -> bool:
        body = greedy_completion(LATE_PROMPT, LONG_ANSWER_TOKENS)
        outcomes.append(attempt(front.server.post, COMPLETIONS, body))
        if NO_SERVER not in outcomes[-1].detail:
            return True
        turned_away.set()
        return False

    wait_until(taken, LIMIT_SECONDS, "the router has servers again")
    return outcomes[-1]


def assert_right(outcome: Outcome, prompt: str, by_sglang: Reference, changes: int) -> None:
    assert outcome.words is not None, f"after {changes} changes: {outcome.detail}"
    assert outcome.words[:ANSWER_TOKENS] == by_sglang.to(prompt), f"after {changes} changes"
    assert len(outcome.words) == LONG_ANSWER_TOKENS


def changed_under_way(pool: ThreadPoolExecutor, two: Two, by_sglang: Reference, number: int) -> list[Change]:
    """Both roles change while a request is held, and another one is turned away until they have."""
    turned_away = Event()
    with two.gate.closed():
        held = held_under_way(pool, two)
        two.front.forget()
        late = pool.submit(asked_until_taken, two.front, turned_away)
        assert turned_away.wait(LIMIT_SECONDS), "the router had a server for a request that came during a change"
        changes = two.switch()
    assert_right(late.result(LIMIT_SECONDS), LATE_PROMPT, by_sglang, number + 1)
    assert_right(held.result(LIMIT_SECONDS), HELD_PROMPT, by_sglang, number)
    return changes


def test_tokens_are_right_in_either_role_after_each_change(
    two: Two, by_sglang: Reference, pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("--role-switches")
    changes: list[Change] = []
    with ThreadPoolExecutor(len(SWITCHED.lengths) + 2) as pool:
        for number in range(count + 1):
            asked = under_way(pool, two)
            if number < count:
                changes += changed_under_way(pool, two, by_sglang, number)
            for prompt, answer in asked:
                assert_right(answer.result(LIMIT_SECONDS), prompt, by_sglang, number)
    for instance in two.roles:
        instance.side.wait_at_rest()
        log = instance.side.server.log()
        assert len(CLEAN.findall(log)) == len(CLOSED.findall(log)) == count, "a leak check was not clean"
    took = [1000 * change.seconds for change in changes]
    print(
        f"{count} changes of both servers' roles: one took {statistics.median(took):.0f} ms (median),"
        f" {max(took):.0f} ms at most; each was put off until requests under way had ended,"
        f" {max(change.put_off for change in changes)} times at most, and turned a request away that came meanwhile"
    )
    assert all(change.put_off for change in changes), "a change did not wait for a request that was under way"
