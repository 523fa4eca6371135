"""Requests that ended before their prefillers were found are looked after until they are declined, or for a limit."""

from __future__ import annotations

import random

import pytest

from kv_connector.sglang.client_fields import SERVERS_REMEMBERED_MAX
from kv_connector.sglang.late_declines import LATE_LIMIT_SECONDS, LateDeclines

STORIES = 200
NEVER = 10**6


class Request:
    """One whose prefiller is found in its ``polls``-th round, or meets a fault then."""

    def __init__(self, polls: int, *, fails: bool) -> None:
        self.polls_left, self._fails = polls, fails
        self.declined_count = 0

    def decline_once_found(self) -> bool:
        self.polls_left -= 1
        if self.polls_left:
            return False
        if self._fails:
            raise OSError("no prefiller")
        self.declined_count += 1
        return True


@pytest.mark.parametrize("seed", range(STORIES))
def test_should_decline_each_once_and_keep_none(seed: int) -> None:
    draw = random.Random(seed)
    now = [0.0]
    declines = LateDeclines(lambda: now[0])
    requests: list[Request] = []
    for _round in range(draw.randint(1, 40)):
        for _ in range(draw.choice([0, 0, 1, 3])):
            requests.append(Request(draw.choice([1, 2, 5, NEVER]), fails=draw.random() < 0.2))
            declines.add(requests[-1])
        declines.poll()
    kept = [each for each in requests if each.polls_left > 0]
    assert declines.count() == len(kept)
    assert all(each.declined_count == (not each._fails) for each in requests if each not in kept)
    now[0] = LATE_LIMIT_SECONDS
    declines.poll()
    assert declines.count() == 0, "one whose prefiller never answers is given up"
    polls_left = [each.polls_left for each in requests]
    declines.poll()
    assert polls_left == [each.polls_left for each in requests]


def test_should_give_none_up_before_its_own_limit() -> None:
    now = [0.0]
    declines = LateDeclines(lambda: now[0])
    declines.add(Request(NEVER, fails=False))
    now[0] = LATE_LIMIT_SECONDS - 1.0
    declines.add(Request(NEVER, fails=False))
    declines.poll()
    assert declines.count() == 2
    now[0] = LATE_LIMIT_SECONDS
    declines.poll()
    assert declines.count() == 1


def test_should_keep_no_more_than_clients_may_have_made_up() -> None:
    declines = LateDeclines(lambda: 0.0)
    for number in range(SERVERS_REMEMBERED_MAX + 3):
        declines.add(Request(number + 2, fails=False))
    assert declines.count() == SERVERS_REMEMBERED_MAX
