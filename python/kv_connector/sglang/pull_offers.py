"""The source's side of pulls: what this engine's prefix cache holds of a prompt is offered to an engine that asks.

The question comes as events of the messenger, and is looked up on the thread that owns the cache. What it holds stays
there until the messenger has released the offer, which it does once it is fetched or declined, or after a short limit.
A chunk is in SGLang's cache from when its pass is queued, so an offer leaves once all passes queued by then are over.
Nothing is computed for another engine, and nothing is held for a conversation.

Used by the scheduler's thread only.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.runtime.commands import ChunkPages, Offer, OfferReason, PrefillEnded, Withdraw
from kv_connector.runtime.facade import Asked
from kv_connector.sglang.exchange import UNHEARD_SECONDS, Exchange
from kv_connector.sglang.passes import PassesSoFar
from kv_connector.sglang.prefix_tree import Held, PrefixTree
from kv_connector.sglang.pull_rules import PullRules

QUESTIONS_MAX = 64
"""Those of which parts are to come: as many as the messenger has open."""


@dataclass(slots=True)
class _Question:
    prompt_digest: str
    cache_salt: str
    token_count: int
    tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    offer: Offer
    passes: PassesSoFar


class Offers:
    """The offers that the messenger has not released, and what they hold."""

    def __init__(
        self,
        tree: PrefixTree,
        rules: PullRules,
        exchange: Exchange,
        passes: Callable[[], PassesSoFar],
        weights: Callable[[], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``passes`` marks what is queued on the device now; ``weights`` names those of which all in the cache is."""
        self._tree = tree
        self._rules = rules
        self._exchange = exchange
        self._passes = passes
        self._weights = weights
        self._logger = logger
        self._now_seconds = now_seconds
        self._count = itertools.count(1)
        self._is_closed = False
        self._questions: dict[str, _Question] = {}
        self._waiting: list[_Waiting] = []
        self._held: dict[str, Held] = {}
        """What each offer holds, by number."""
        self._given_at_seconds: dict[str, float] = {}
        """When the messenger got each offer, or was last told to end it."""
        self._charged: dict[str, int] = {}
        """How many of its tokens nothing else had kept in the cache."""

    def asked(self, event: Asked) -> None:
        """A part of a question has come; with the last one it is looked up."""
        question = self._questions.get(event.transfer)
        if question is None:
            while len(self._questions) >= QUESTIONS_MAX:
                del self._questions[next(iter(self._questions))]
            question = _Question(event.prompt_digest, event.cache_salt, event.token_count)
            self._questions[event.transfer] = question
        question.tokens += event.token_ids
        if len(question.tokens) >= question.token_count:
            del self._questions[event.transfer]
            self._look_up(event.transfer, question)

    def _look_up(self, transfer: str, question: _Question) -> None:
        offer = Offer(f"offer#{next(self._count)}", transfer, question.prompt_digest, True, 0, [], "")
        try:
            reason = self._cannot_be_offered(question) or self._hold(offer.request, question)
            if not reason:
                self._waiting.append(self._held_offer(offer))
        except Exception:
            self._logger.exception("a question of another engine is not answered")
            self.released(offer.request)
            reason = "unavailable"
        if reason:
            self._exchange.submit(replace(offer, reason=reason))

    def _held_offer(self, offer: Offer) -> _Waiting:
        held = self._held[offer.request]
        pages = [ChunkPages(0, self._tree.pages_of(held.slots))]
        return _Waiting(replace(offer, held_tokens=held.token_count, groups=pages), self._passes())

    def _cannot_be_offered(self, question: _Question) -> OfferReason:
        """Why nothing of the prompt can be offered, whatever the cache holds; "" if something may be."""
        if self._is_closed:
            return "busy"
        if self._tree.unfit():
            return "misfit"
        digest = prompt_digest(question.tokens, cache_salt=question.cache_salt, weights=self._weights())
        return "" if digest == question.prompt_digest else "misfit"

    def _hold(self, number: str, question: _Question) -> OfferReason:
        """Holds what the cache has of it; why nothing is held, or ""."""
        before_count = self._tree.protected_count()
        held = self._tree.hold(question.tokens, question.cache_salt)
        newly_count = self._tree.protected_count() - before_count
        limit = self._rules.pages_share * self._tree.capacity_count()
        reason: OfferReason = "" if held.token_count else "not_held"
        if held.token_count and (sum(self._charged.values()) + newly_count > limit or self._tree.spare_count() < 0):
            reason = "busy"
        if reason:
            self._tree.let_go(held)
        else:
            self._held[number], self._charged[number] = held, newly_count
        return reason

    def poll(self) -> None:
        """Gives the messenger the offers whose pages are written."""
        due = [each for each in self._waiting if each.passes.are_over()]
        self._waiting = [each for each in self._waiting if each not in due]
        for each in due:
            self._given_at_seconds[each.offer.request] = self._now_seconds()
            if not self._exchange.submit(each.offer):
                self.released(each.offer.request)
        self._end_again()

    def _end_again(self) -> None:
        """Ends offers of which no release was heard: the messenger ignores that while it has them, or repeats it."""
        now_seconds = self._now_seconds()
        for number, given_at_seconds in self._given_at_seconds.items():
            if now_seconds - given_at_seconds >= UNHEARD_SECONDS:
                self._given_at_seconds[number] = now_seconds
                self._exchange.submit(PrefillEnded(number, "finished"))

    def released(self, number: str) -> None:
        """Nothing reads the pages of this offer any more; other numbers are ignored."""
        self._charged.pop(number, None)
        self._given_at_seconds.pop(number, None)
        if (held := self._held.pop(number, None)) is not None:
            self._tree.let_go(held)

    def withdraw(self) -> None:
        """What is offered is not to be fetched any more, unless that has begun."""
        for each in self._waiting:
            self.released(each.offer.request)
            self._exchange.submit(replace(each.offer, held_tokens=0, groups=[], reason="not_held"))
        self._waiting.clear()
        for number in self._held:
            self._exchange.submit(Withdraw(number))

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Inside, each question is answered that this engine is busy."""
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = False

    def on_lost(self) -> None:
        """The messenger is closed: it reads no page any more."""
        self._waiting.clear()
        self._questions.clear()
        for number in list(self._held):
            self.released(number)

    def held_count(self) -> int:
        """The number of offers that hold something."""
        return len(self._held)
