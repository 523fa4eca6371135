"""However many servers clients name, a scheduler's thread waits for their first answers a part of each second only."""

from __future__ import annotations

import concurrent.futures
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import pytest

from kv_connector.sglang.first_contacts import FIRST_CONTACT_WAIT_SECONDS, WAIT_PERIOD_SECONDS, FirstContacts
from kv_connector.sglang.prefillers import Prefillers, RankPlace

SEEDS = range(60)
NEVER = 1e9


class Servers:
    """Each answers some time after it was asked; the clock goes on while the thread waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.waits: list[tuple[float, float]] = []
        self.asked: Counter[str] = Counter()
        self._next_delay = NEVER
        self._due: list[tuple[float, Future[bool]]] = []
        self.contacts = FirstContacts(self._run, lambda: self.now)
        monkeypatch.setattr(concurrent.futures, "wait", self._wait)

    def name(self, server: str, delay: float) -> Future[bool] | None:
        self._next_delay = delay

        def question() -> bool:
            self.asked[server] += 1
            return True

        return self.contacts.answer(server, question)

    def goes_on(self, seconds: float) -> None:
        self.now += seconds
        for due, future in [each for each in self._due if each[0] <= self.now]:
            self._due.remove((due, future))
            future.set_result(True)

    def _run(self, question: Callable[[], bool]) -> Future[bool]:
        question()
        future: Future[bool] = Future()
        self._due.append((self.now + self._next_delay, future))
        return future

    def _wait(self, futures: Iterable[Any], limit_seconds: float) -> None:
        (awaited,) = futures
        (due,) = [due for due, future in self._due if future is awaited]
        took = min(max(0.0, due - self.now), limit_seconds)
        self.waits.append((self.now, took))
        self.goes_on(took)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    return Servers(monkeypatch)


@pytest.mark.parametrize("seed", SEEDS)
def test_should_wait_a_part_of_each_second_only(servers: Servers, seed: int) -> None:
    """Servers that answer at once, late and never, named in any number in one round or one after the other."""
    draw = random.Random(seed)
    delays: dict[str, float] = {}
    numbers = itertools.count()
    answered: Counter[str] = Counter()
    for _round in range(draw.randint(5, 80)):
        for _ in range(draw.choice([0, 1, 2, 60])):
            delays[f"made-up-{next(numbers)}:1"] = draw.choice([0.001, 0.02, 0.5, NEVER])
        for server in draw.sample(sorted(delays), min(len(delays), draw.choice([1, 5, 100]))):
            if servers.name(server, delays[server]) is not None:
                answered[server] += 1
                del delays[server]
        servers.goes_on(draw.choice([0.0, 0.001, 0.1, 1.0]))
    for begun, _took in servers.waits:
        within = [took for since, took in servers.waits if begun <= since < begun + WAIT_PERIOD_SECONDS]
        # Two periods may touch: the end of one and the beginning of the next.
        assert sum(within) <= 2 * FIRST_CONTACT_WAIT_SECONDS + 1e-9
    assert sum(took for _, took in servers.waits) <= FIRST_CONTACT_WAIT_SECONDS * (1 + servers.now - 100.0)
    assert all(count == 1 for count in answered.values())


def test_should_have_many_first_answers_in_the_round_in_which_they_are_asked_for(servers: Servers) -> None:
    """An engine that is started meets all of its prefillers at once; each answers within some milliseconds."""
    assert all(servers.name(f"prefiller-{number}:1", 0.004) is not None for number in range(12))


def test_should_keep_nothing_of_servers_that_are_not_named_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 50
    for module in ("first_contacts", "client_fields"):
        monkeypatch.setattr(f"kv_connector.sglang.{module}.SERVERS_REMEMBERED_MAX", most)
    prefillers = Prefillers(lambda _url, _query: {"rank_ip": "there", "rank_port": 7})
    for number in range(10 * most):
        servers.name(f"made-up-{number}:1", 0.5)
        servers.goes_on(0.1)
        lookup = prefillers.find_again(f"made-up-{number}:1", [RankPlace(0, 0, 0, 0)])
        assert all(question.result() for question in lookup._waiting)
    assert len(servers.contacts._waited_for) <= most
    assert len(servers.contacts._open) <= most
    assert len(prefillers._questions) <= most
    prefillers.close()
