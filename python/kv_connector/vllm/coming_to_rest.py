"""An engine that comes to rest for other weights: no other engine waits for what this one does not begin.

It ends what is under way by the weights before, and begins nothing until it has loaded. What is under way is over at a
prefiller when a decoder has fetched or declined it, and at a decoder when its KV has come. So where a prefiller and its
decoder come to rest together, each would wait for requests in the other's queue. At rest, therefore:

- a prefiller gives up prompts that it has not begun and for which a decoder has pages: that decoder computes them, or
  fails them (``kv_load_failure_policy``);
- a decoder declines what its prefiller has computed for requests that it has not begun, and computes those itself;
- nothing is offered to pulls;
- a prefiller holds what it has computed for a decoder that has not asked for it for a short time only.

Where requests under way are frozen instead, it computes nothing until it has loaded, and only the last two are so.

Prompts that wait on both sides keep their names until weights have changed (``PrefillNames``, ``FetchNames``).

Used by the engine core's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from kv_connector.runtime.commands import Decline
from kv_connector.vllm.ended_prefills import EndedPrefills
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.fetch_names import FetchNames
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.messenger_limits import GRANT_WAIT_AT_REST_SECONDS
from kv_connector.vllm.metadata import StepMetadata
from kv_connector.vllm.offers import Offers
from kv_connector.vllm.prefill_chunks import Prefill
from kv_connector.vllm.request_numbers import RequestNumbers


class ComingToRest:
    """Gives up what others wait for, in each step until the engine goes on."""

    def __init__(
        self,
        open_ones: dict[str, Prefill],
        ended: EndedPrefills,
        names: FetchNames,
        gate: FetchGate,
        offers: Offers,
        numbers: RequestNumbers,
        give_up: Callable[[str, Prefill, StepMetadata], None],
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``open_ones`` are prefills that are not over; ``give_up`` stops sending one that continues in the engine."""
        self._prefills = open_ones
        self._ended = ended
        self._names = names
        self._gate = gate
        self._offers = offers
        self._numbers = numbers
        self._give_up = give_up
        self._now_seconds = now_seconds
        self._is_on = False
        self._finishes = True
        self._held_until_seconds: dict[str, float] = {}
        """The computed prompts that no decoder has asked for, while the engine comes to rest."""

    def begin(self, *, finishes: bool) -> None:
        """The engine begins no request from now on. ``finishes``: whether it ends those under way, or freezes them."""
        self._is_on = self._offers.none_now = True
        self._finishes = finishes

    def end(self) -> None:
        """The engine begins requests again."""
        self._is_on = self._offers.none_now = False
        self._held_until_seconds.clear()

    def granted(self, numbers: Iterable[str]) -> None:
        """Decoders have pages for these prefills."""
        for number in numbers:
            request_id = self._numbers.name(number)
            self._ended.granted(request_id)
            if (prefill := self._prefills.get(request_id) or self._named_besides(number)) is not None:
                prefill.granted.add(number)

    def _named_besides(self, number: str) -> Prefill | None:
        by_number = (prefill for prefill in self._prefills.values() if prefill.other_names)
        return next((each for each in by_number if number in (n for n, _ in each.other_names.values())), None)

    def step(self, meta: StepMetadata) -> None:
        """A step is scheduled."""
        if self._is_on:
            self._offers.withdraw(meta)
            if self._finishes:
                self._give_up_granted(meta)
                self._decline_computed(meta)
            self._expire_held(meta)

    def _give_up_granted(self, meta: StepMetadata) -> None:
        """Those that have lost their blocks too: vLLM has them wait with new ones."""
        for request_id, prefill in list(self._prefills.items()):
            if prefill.granted and not prefill.has_blocks and not prefill.given_up:
                self._give_up(request_id, prefill, meta)

    def _decline_computed(self, meta: StepMetadata) -> None:
        for request, ask in self._names.waiting():
            if self._gate.outdated(request.request_id):
                meta.expects.pop(request.request_id, None)
                meta.declines.append(Decline(*self._names.held(request, ask), prefillers(ask.messengers)))
                self._names.forget(request.request_id)

    def _expire_held(self, meta: StepMetadata) -> None:
        now_seconds, until_seconds = self._now_seconds(), self._held_until_seconds
        for request_id in self._ended.ungranted():
            limit_seconds = until_seconds.setdefault(request_id, now_seconds + GRANT_WAIT_AT_REST_SECONDS)
            if now_seconds >= limit_seconds:
                until_seconds[request_id] = float("inf")
                meta.expired.append(self._numbers.of(request_id))
