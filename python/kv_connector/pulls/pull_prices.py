"""What a pull costs beside computing the same tokens, by what this engine has measured."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.pulls.ask_budget import AskBudget
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.transfer_price import TransferPrices
from kv_connector.runtime.commands import PullOutcome

ASK_LIMIT_SECONDS = 0.25
"""How long a request waits for an answer that takes milliseconds if the engine that is asked can give one."""
PULL_LIMIT_SECONDS_MIN = 2.0
PULL_LIMIT_FACTOR = 3.0
"""A fetch that takes this many times as long as computing its tokens is given up; its pages need proof then."""
KNOWN_SECONDS = 60.0
"""How long a pull that was slow keeps others from the same engine: links and engines change."""
ACQUAINTANCE_SECONDS = 5.0
"""After the first question to an engine: its session opens, and on a GPU memory is mapped."""
SLOW_PULLS_MAX = 8
OWN_REASONS = ("busy", "misfit")
"""Why a question ends without an answer that may be this engine's own messenger's reasons."""
SOURCES_MAX = 256
"""Requests name the engines: those named longest ago are forgotten."""


class PriceRules(Protocol):
    """What the options say of prices."""

    @property
    def always(self) -> bool:
        """Whether to pull whatever the other engine holds, also where computing it would be faster."""

    @property
    def tokens_min(self) -> int:
        """How many tokens more than its own cache an engine must get to pull them."""

    @property
    def offer_limit_seconds(self) -> float:
        """How long an engine keeps what it offers."""


@dataclass(frozen=True, slots=True)
class _Past:
    tokens: int
    seconds: float
    over_at_seconds: float


class PullPrices:
    """Decides whether a pull is worth it, from which engine, and how long to wait for one. Used by one thread.

    A pull of more tokens takes no less time. So it is not worth it where one from the same engine, of no more tokens,
    has lately taken longer than computing would take now, or where its price is known and no lower. A price is not
    taken far beyond what was seen: a small pull is all latency.
    """

    def __init__(self, rules: PriceRules, rate: PrefillRate, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._rate = rate
        self._now_seconds = now_seconds
        self.transfers = TransferPrices(now_seconds)
        self._budget = AskBudget()
        self._past: OrderedDict[Messengers, list[_Past]] = OrderedDict()
        self._new_until_seconds: OrderedDict[Messengers, float] = OrderedDict()

    def choose(self, sources: Sequence[Messengers], tokens: int) -> Messengers | None:
        """Which of the engines to ask for that many tokens; None if all of them are dead.

        One alone is chosen also when it is dead. One whose answer the prompt would not wait for is passed over where
        there is another one, which makes up for its late answers as computing the prompt would.
        """
        if len(sources) == 1:
            return sources[0]
        waited_for = [source for source in sources if self.may_wait(source, tokens)]
        wait_seconds = self.ask_limit_seconds(tokens)
        chosen = self.transfers.cheapest(waited_for, tokens, wait_seconds)
        if chosen is None:
            return self.transfers.cheapest(sources, tokens, wait_seconds)
        for source in sources:
            if source not in waited_for and not self.transfers.is_dead(source):
                self.ended(source, tokens, waited_seconds=0.0, pulled_tokens=0)
        return chosen

    def is_worth(self, source: Messengers, tokens: int, *, is_answered: bool = False) -> bool:
        """Whether pulling the tokens is expected to be faster than computing them; ``is_answered``: from now on."""
        computing_seconds = None if self._rules.always else self._rate.seconds_of(tokens)
        if computing_seconds is None:
            return True
        price = self.transfers.price(source, tokens)
        if price is not None and price.known:
            before_seconds = 0.0 if is_answered else price.open_seconds + price.answer_seconds
            if before_seconds + price.queue_seconds + price.move_seconds >= computing_seconds:
                return False
        oldest_seconds = self._now_seconds() - KNOWN_SECONDS
        return not any(
            past.tokens <= tokens and past.seconds >= computing_seconds and past.over_at_seconds >= oldest_seconds
            for past in self._past.get(source, ())
        )

    def pulled(self, source: Messengers, tokens: int, seconds: float) -> None:
        """A pull of the tokens has arrived, or was given up, after this time in all."""
        past = self._past.setdefault(source, [])
        self._past.move_to_end(source)
        past.append(_Past(tokens, seconds, self._now_seconds()))
        del past[:-SLOW_PULLS_MAX]
        if len(self._past) > SOURCES_MAX:
            self._past.popitem(last=False)

    def asked(self, source: Messengers) -> None:
        """A question leaves for the engine; ``ended_as`` ends what begins with it."""
        self.transfers.asked(source)
        self._new_until_seconds.setdefault(source, self._now_seconds() + ACQUAINTANCE_SECONDS)
        self._new_until_seconds.move_to_end(source)
        if len(self._new_until_seconds) > SOURCES_MAX:
            self._new_until_seconds.popitem(last=False)

    def answered(self, source: Messengers, seconds: float, reason: str = "") -> None:
        """A question has been answered after this time; ``reason`` is why with nothing, if so.

        Questions that this engine's own messenger declines are answered too, and say nothing of the other engine.
        """
        if source in self._new_until_seconds:
            self._new_until_seconds[source] = self._now_seconds()
        if reason not in OWN_REASONS:
            self.transfers.answered(source, seconds)

    def may_wait(self, source: Messengers, tokens: int) -> bool:
        """Whether a prompt that lacks this many tokens may wait for the engine's answer."""
        return self._rules.always or (self._budget.allows(source, tokens) and self.is_worth(source, tokens))

    def gains(self, source: Messengers, lacked_tokens: int) -> bool:
        """Whether a prompt that lacks this many tokens would wait for the engine's answer.

        Where it would not because earlier ones were late or of no use, computing it makes up for these.
        """
        if lacked_tokens < self._rules.tokens_min:
            return False
        if self.may_wait(source, lacked_tokens):
            return True
        self.ended(source, lacked_tokens, waited_seconds=0.0, pulled_tokens=0)
        return False

    def ended(self, source: Messengers, tokens: int, waited_seconds: float, pulled_tokens: int) -> None:
        """A prompt that lacked this many tokens was kept for this time, and has got ``pulled_tokens``.

        Waits for the first answer of an engine show nothing of what later ones take.
        """
        if self._now_seconds() < self._new_until_seconds.get(source, 0.0):
            return
        saved_seconds, computed_seconds = (
            self._rate.seconds_of(each) or 0.0 for each in (pulled_tokens, tokens - pulled_tokens)
        )
        self._budget.book(
            source,
            tokens,
            waited_seconds=waited_seconds,
            saved_seconds=saved_seconds,
            computed_seconds=computed_seconds,
        )

    def ended_as(self, source: Messengers, outcome: PullOutcome, asked_seconds: float) -> None:
        """A question to the engine, for whose answer it was waited so long, or what it led to has come to this.

        Called once for each.
        """
        self.transfers.question_over(source)
        if outcome == "late":
            self.transfers.late(source, asked_seconds)
        elif outcome in ("unreachable", "failed"):
            self.transfers.lost(source)

    def fetched(
        self, source: Messengers, tokens: int, seconds: float, own_seconds: float, outcome: PullOutcome
    ) -> None:
        """A fetch of the tokens has come to this after this time, of which ``own_seconds`` were its part, if known.

        One whose client has left shows as much as one that failed: how long its tokens had not arrived.
        """
        seconds = min(seconds, own_seconds or seconds)
        if outcome == "arrived":
            self.transfers.moved(source, tokens, seconds)
        elif outcome in ("failed", "aborted"):
            self.transfers.stalled(source, tokens, seconds)

    def ask_limit_seconds(self, tokens: int) -> float:
        """How long a request waits for the answer of the engine that it asks."""
        if self._rules.always:
            return self._rules.offer_limit_seconds
        computing_seconds = self._rate.seconds_of(tokens)
        return ASK_LIMIT_SECONDS if computing_seconds is None else min(ASK_LIMIT_SECONDS, computing_seconds / 2)

    def fetch_limit_seconds(self, tokens: int) -> float:
        """How long a pull may take; 0 = as long as any other fetch."""
        computing_seconds = None if self._rules.always else self._rate.seconds_of(tokens)
        return 0.0 if computing_seconds is None else max(PULL_LIMIT_SECONDS_MIN, PULL_LIMIT_FACTOR * computing_seconds)
