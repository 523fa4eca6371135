"""Makes a recorded request's calls again, in any order of them, between pools whose pages are filled layer by layer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from one_process import Pair, pages, until, wait_for
from recorded_calls import Call, Computed, Other, Plan, Recorded, Sent
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang_order import Prefill


class Event:
    """Of the device: it is over when it is asked for the second time."""

    def __init__(self) -> None:
        self._asked = False

    def query(self) -> bool:
        asked, self._asked = self._asked, True
        return asked


class Replay:
    """One request on both sides; its pages are drawn anew for each."""

    def __init__(self, pair: Pair, prefill: Prefill, recorded: Recorded, draw: random.Random) -> None:
        self._pair, self._prefill, self._recorded = pair, prefill, recorded
        shape = pair.prefiller.shape
        self._page_tokens = shape.page_tokens
        drawn = [draw.sample(range(1, shape.page_count + 1), recorded.page_count) for _ in range(2)]
        self.sources, self.targets = drawn
        self._given = 0
        self.plans: list[bool] = []
        """Which of them were taken."""
        self._room, self._slot = pair.next_room(), prefill.next_slot()
        self.sender, self.receiver = pair.sender(self._room), pair.receiver(self._room)
        self.receiver.send_metadata(pages(*self.targets), self._slot, decode_prefix_len=0)
        wait_for(self.sender, KVPoll.WaitingForInput)
        self.sender.init(recorded.page_count, self._slot)
        if recorded.leaves_to_send():
            self.sender.leave_to_send()

    def make(self, calls: Sequence[Call]) -> None:
        rest = iter(calls)
        for call in rest:
            if isinstance(call, Plan):
                self._run_pass(call, rest)
            else:
                self._one(call)
            self.sender.poll()

    def end_served(self) -> None:
        wait_for(self.receiver, KVPoll.Success)
        wait_for(self.sender, KVPoll.Success)
        self._pair.assert_equal_pages(self.sources, self.targets)
        self.receiver.clear()
        self.sender.clear()

    def give_up(self, *, prefill: bool, decode: bool) -> None:
        """As SGLang does it: aborted at these sides, then ended on both, each when nothing touches its pages."""
        if decode:
            self.receiver.abort()
        if prefill:
            self.sender.abort()
        for transfer in (self.receiver, self.sender):
            until(lambda transfer=transfer: transfer.poll() in (KVPoll.Failed, KVPoll.Success), "it ends")
        self.receiver.ensure_abort_notified()
        until(lambda: self._pair.decoder.endpoint.is_abort_release_safe(self._room, 1), "the decoder's pages are safe")
        self.receiver.clear()
        self.sender.clear()

    def targets_now(self) -> list[Any]:
        return self._pair.decoder.all_pages(self.targets)

    def overwrite_sources(self) -> None:
        """The prefiller's pages are filled by what they are used for next."""
        self._prefill.fill(self.sources)

    def _run_pass(self, plan: Plan, rest: Iterator[Call]) -> None:
        prompt = plan.prompt_tokens
        planned = self.sender.plan(plan.end_token, prompt, lambda first, end: self.sources[first:end])
        self.plans.append(planned is not None)
        self._prefill.steps.run(lambda: [] if planned is None else [planned], lambda: self._until_computed(rest))

    def _until_computed(self, rest: Iterator[Call]) -> None:
        for call in rest:
            self._one(call)
            if isinstance(call, Computed):
                return

    def _one(self, call: Call) -> None:
        match call:
            case Computed(first_token, end_token):
                end_page = -(-end_token // self._page_tokens)
                self._prefill.fill(self.sources[first_token // self._page_tokens : end_page])
            case Sent(page_count, behind_event):
                self._send(page_count, behind_event)
            case _:
                raise AssertionError(f"not a call of an order: {call}")

    def _send(self, page_count: int, behind_event: bool) -> None:
        first, self._given = self._given, self._given + page_count
        last = self._given == self._recorded.page_count
        if last:
            self._pair.write_metadata(self._slot, self._room, 7)
        if behind_event:
            self.sender._early_send_wait_event = Event()
        self.sender.send(pages(*self.sources[first : self._given]), [] if last else None)


def unchanged(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(torch.equal(here, there) for here, there in zip(before, after, strict=True))


def given_up_at(recorded: Recorded) -> dict[str, bool]:
    """The sides at which the request was aborted."""
    return {"prefill": Other("abort") in recorded.prefill, "decode": Other("abort") in recorded.decode}
