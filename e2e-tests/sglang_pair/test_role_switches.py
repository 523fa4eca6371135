"""Two SGLang servers that change roles with each other while they run: the prefiller decodes, the decoder prefills.

All requests come through SGLang's router, which is told of each change. Some are under way when one is asked for:
SGLang puts it off until a side is idle. One more comes during each change. `make role-switches` makes as many as
`--role-switches` says, of which the tests make few.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

import pytest
from conftest import Reference
from faults import Outcome, attempt
from role_router import Behind, RoleRouter, router
from server_process import free_port, greedy_completion, wait_until
from sglang_bed import COMPLETIONS, Ground, Kind, Side, start
from sglang_servers import Role
from sglang_workload import AFTER_FAULTS, ANSWER_TOKENS, SWITCHED

pytest_plugins = ["sglang_fixtures"]
SWITCHING: Final = Kind(switches=True)
ROLES: Final[tuple[Role, Role]] = ("prefill", "decode")
LIMIT_SECONDS: Final = 90.0
LONG_ANSWER_TOKENS: Final = 100
"""It is still being computed when a change is asked for. What is compared is its beginning."""
LATE_PROMPT: Final = AFTER_FAULTS.prompts()[0]
"""Of tests with other servers, so no cache has its beginning."""
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

    def become(self, role: str) -> Change:
        """Returns when its role has changed."""
        begun, put_off = 0.0, -1

        def changed() -> bool:
            nonlocal begun, put_off
            begun, put_off = time.monotonic(), put_off + 1
            answer = self.side.server.post("/pd_role_switch", {"new_role": role, "decode_cuda_graph_memory_gb": 0.0})
            if answer.get("success"):
                return True
            assert "not idle" in str(answer), answer
            return False

        wait_until(changed, LIMIT_SECONDS, f"{self.side.server.name} is a {role} server")
        return Change(time.monotonic() - begun, put_off)


@dataclass
class Two:
    """Both instances, the prefiller first, and the router in front of them."""

    roles: list[Instance]
    front: RoleRouter

    @property
    def decoder(self) -> Side:
        return self.roles[1].side

    def switch(self) -> list[Change]:
        """Both at the same time; then the router knows their new roles."""
        with ThreadPoolExecutor(2) as both:
            changes = list(both.map(Instance.become, self.roles, ("decode", "prefill")))
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
        yield Two(made, front)


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


def asked_until_taken(front: RoleRouter) -> tuple[Outcome, int]:
    """A client that asks again as long as the router has no server, and how often it did."""
    outcomes: list[Outcome] = []

    def taken() -> bool:
        body = greedy_completion(LATE_PROMPT, LONG_ANSWER_TOKENS)
        outcomes.append(attempt(front.server.post, COMPLETIONS, body))
        return NO_SERVER not in outcomes[-1].detail

    wait_until(taken, LIMIT_SECONDS, "the router has servers again")
    return outcomes[-1], len(outcomes) - 1


def assert_right(outcome: Outcome, prompt: str, by_sglang: Reference, changes: int) -> None:
    assert outcome.words is not None, f"after {changes} changes: {outcome.detail}"
    assert outcome.words[:ANSWER_TOKENS] == by_sglang.to(prompt), f"after {changes} changes"
    assert len(outcome.words) == LONG_ANSWER_TOKENS


def test_tokens_are_right_in_either_role_after_each_change(
    two: Two, by_sglang: Reference, pytestconfig: pytest.Config
) -> None:
    count = pytestconfig.getoption("--role-switches")
    changes: list[Change] = []
    turned_away: list[int] = []
    with ThreadPoolExecutor(len(SWITCHED.lengths) + 1) as pool:
        for number in range(count + 1):
            asked = under_way(pool, two)
            if number < count:
                two.front.forget()
                late = pool.submit(asked_until_taken, two.front)
                changes += two.switch()
                outcome, times = late.result(LIMIT_SECONDS)
                assert_right(outcome, LATE_PROMPT, by_sglang, number + 1)
                turned_away.append(times)
            for prompt, answer in asked:
                assert_right(answer.result(LIMIT_SECONDS), prompt, by_sglang, number)
    for instance in two.roles:
        instance.side.wait_at_rest()
        log = instance.side.server.log()
        assert len(CLEAN.findall(log)) == len(CLOSED.findall(log)) == count, "a leak check was not clean"
    took = [1000 * change.seconds for change in changes]
    put_off = [change for change in changes if change.put_off]
    print(
        f"{count} changes of both servers' roles: one took {statistics.median(took):.0f} ms (median),"
        f" {max(took):.0f} ms at most; {len(put_off)} of {len(changes)} were put off until requests under way had ended"
        f"; {sum(map(bool, turned_away))} of {count} requests that came meanwhile were turned away before"
    )
    assert put_off, "no request was under way when a change was asked for"
    assert any(turned_away), "no request came while the router had no server"
