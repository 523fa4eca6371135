"""What vLLM has preempted when an engine finishes what is under way, in schedulers with little room."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from types import SimpleNamespace

import pytest

from kv_connector.vllm.preempted_requests import admit_preempted

SEEDS = range(300)
STEPS_MAX = 2000


class Request:
    """Each token has a block of its own."""

    def __init__(self, prompt: int, answer: int) -> None:
        self.tokens = self.prompt = prompt
        self.whole = prompt + answer
        self.computed = 0
        self.stale_steps = 0
        """For which a step that skips it would deliver tokens of before its preemption."""
        self.status = SimpleNamespace(name="WAITING")

    @property
    def has_begun(self) -> bool:
        return self.tokens > self.prompt


class RequestQueue(deque[Request]):
    """vLLM's, by the order of arrival."""

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def remove_requests(self, requests: Collection[Request]) -> None:
        kept = [each for each in self if each not in requests]
        self.clear()
        self.extend(kept)


class Scheduler:
    """As vLLM's where it admits nothing new: what has no blocks stays in the queue, and is not counted."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._room = draw.randint(15, 24)
        self.waiting = RequestQueue(
            Request(draw.randint(1, 4), draw.randint(2, 10)) for _ in range(draw.randint(1, 12))
        )
        self.all = list(self.waiting)
        self.kv_holding_waiting = RequestQueue()
        self.running: list[Request] = []
        self.admits_new = True
        self.preemptions = 0

    def _free(self) -> int:
        return self._room - sum(request.computed for request in self.running)

    def schedule(self, throttle: bool = False) -> int:
        """How many requests run."""
        assert throttle is False
        preempted = self._grow()
        skipped = []
        while not preempted:
            queue = self.kv_holding_waiting or (self.waiting if self.admits_new else self.kv_holding_waiting)
            if not queue or self._free() < queue[0].tokens + 1:
                break
            request = queue.popleft()
            if request.stale_steps:
                request.stale_steps -= 1
                skipped.append(request)
                continue
            request.computed = request.tokens
            request.status.name = "RUNNING"
            self.running.append(request)
        self.waiting.extendleft(reversed(skipped))
        self._draw_tokens()
        return len(self.running)

    def _grow(self) -> bool:
        preempted = False
        for request in list(self.running):
            while request in self.running and self._free() < 1:
                preempted = True
                self._preempt(self.running[-1])
            if request in self.running:
                request.computed += 1
        return preempted

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        request.computed = 0
        request.status.name = "PREEMPTED"
        request.stale_steps = self._draw.randint(0, 2)
        self.preemptions += 1
        self.waiting.prepend_request(request)

    def _draw_tokens(self) -> None:
        for request in self.running:
            request.tokens = max(request.tokens, request.computed)
            request.tokens += request.tokens == request.computed
        self.running = [request for request in self.running if request.tokens < request.whole]

    def unfinished(self) -> int:
        return len(self.running) + len(self.kv_holding_waiting) + (len(self.waiting) if self.admits_new else 0)

    def run_out(self) -> None:
        for _ in range(STEPS_MAX):
            if not self.unfinished():
                return
            self.schedule()
        raise AssertionError("it does not end")


def come_to_rest(seed: int, admit: Callable[[Scheduler], Callable[[], None]]) -> tuple[Scheduler, list[Request]]:
    """The scheduler at rest, with what is half done."""
    draw = random.Random(seed)
    scheduler = Scheduler(draw)
    for _ in range(draw.randint(0, 12)):
        scheduler.schedule()
    not_begun = [request for request in scheduler.all if not request.has_begun and request not in scheduler.running]
    end = admit(scheduler)
    scheduler.admits_new = False
    scheduler.run_out()
    end()
    assert all(request in scheduler.waiting for request in not_begun), "something new was begun"
    return scheduler, [each for each in scheduler.all if each.has_begun and each.tokens < each.whole]


def test_should_end_all_that_has_begun_and_begin_nothing() -> None:
    preemptions = 0
    for seed in SEEDS:
        scheduler, half_done = come_to_rest(seed, admit_preempted)
        assert not half_done, seed
        preemptions += scheduler.preemptions
        scheduler.admits_new = True
        scheduler.run_out()
        assert all(request.tokens >= request.whole for request in scheduler.all)
    assert preemptions > len(SEEDS)


def test_should_be_needed() -> None:
    """In vLLM's own drain, and in one that moves what is preempted only once."""

    def once(scheduler: Scheduler) -> Callable[[], None]:
        admit_preempted(scheduler)()
        return lambda: None

    for admit in (lambda _: lambda: None, once):
        assert any(come_to_rest(seed, admit)[1] for seed in SEEDS)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_should_leave_the_scheduler_as_it_was(is_wrapped: bool) -> None:
    scheduler = Scheduler(random.Random(1))
    if is_wrapped:
        scheduler.schedule = lambda throttle=False: Scheduler.schedule(scheduler, throttle)  # type: ignore[method-assign]
    before = dict(vars(scheduler))
    end = admit_preempted(scheduler)
    assert scheduler.schedule(throttle=False) >= 0
    end()
    assert vars(scheduler).get("schedule") is before.get("schedule")


def test_should_warn_of_a_scheduler_of_another_kind(caplog: pytest.LogCaptureFixture) -> None:
    other = SimpleNamespace(schedule=None)
    admit_preempted(other)()
    assert "goes on by the new weights: the scheduler SimpleNamespace has no queue" in caplog.text
    assert vars(other) == {"schedule": None}
