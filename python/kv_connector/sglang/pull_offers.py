"""The source's side of pulls: what this engine's prefix cache holds of a prompt is offered to an engine that asks.

The question comes as events of the messenger, and is looked up on the thread that owns the cache. What it holds stays
there until the messenger has released the offer, which it does once it is fetched or declined, or after a short limit.
A chunk is in SGLang's cache from when its pass is queued, so an offer leaves once all passes queued by then are over.
Nothing is computed for another engine, and nothing is held for a conversation.

The question comes to the first rank. All ranks hold what they find, each gives its own messenger its own offer, and
none lets go before the last messenger has released it: see ``pull_ranks.py``.

Used by the scheduler's thread only.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.runtime.commands import ChunkPages, Offer, OfferReason, PrefillEnded, Withdraw
from kv_connector.runtime.facade import Asked
from kv_connector.sglang.exchange import UNHEARD_SECONDS, Exchange
from kv_connector.sglang.passes import PassesSoFar
from kv_connector.sglang.prefix_tree import Held, PrefixTree
from kv_connector.sglang.pull_ranks import PullRanks
from kv_connector.sglang.pull_rules import PullRules

QUESTIONS_MAX = 64
"""Those of which parts are to come: as many as the messenger has open."""


@dataclass(slots=True)
class _Question:
    prompt_digest: str
    cache_salt: str
    token_count: int
    tokens: array[int] = field(default_factory=lambda: array("q"))
    """An array, of which a digest takes a tenth of a millisecond, and a list's takes several."""


@dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """A decision: all ranks hold what their caches have of these tokens, and offer it."""

    number: str
    transfer: str
    prompt_digest: str
    salt: str
    tokens: array[int]


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
        ranks: PullRanks,
        passes: Callable[[], PassesSoFar],
        weights: Callable[[], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``passes`` marks what is queued on the device now; ``weights`` names those of which all in the cache is."""
        self._tree = tree
        self._rules = rules
        self._exchange = exchange
        self._ranks = ranks
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
        self._released: set[str] = set()
        """Those of which this rank's messenger reads nothing any more; other ranks' may."""
        ranks.on(Hold, self._hold_all)

    def asked(self, event: Asked) -> None:
        """A part of a question has come; with the last one it is looked up."""
        question = self._questions.get(event.transfer)
        if question is None:
            while len(self._questions) >= QUESTIONS_MAX:
                del self._questions[next(iter(self._questions))]
            question = _Question(event.prompt_digest, event.cache_salt, event.token_count)
            self._questions[event.transfer] = question
        question.tokens.extend(event.token_ids)
        if len(question.tokens) >= question.token_count:
            del self._questions[event.transfer]
            self._look_up(event.transfer, question)

    def _look_up(self, transfer: str, question: _Question) -> None:
        number = f"offer#{next(self._count)}"
        reason: OfferReason = "unavailable"
        try:
            reason = self._cannot_be_offered(question)
        except Exception:
            self._logger.exception("a question of another engine is not answered")
        if reason:
            self._exchange.submit(Offer(number, transfer, question.prompt_digest, True, 0, [], reason))
            return
        self._ranks.decide(Hold(number, transfer, question.prompt_digest, question.cache_salt, question.tokens))

    def _cannot_be_offered(self, question: _Question) -> OfferReason:
        """Why nothing of the prompt can be offered, whatever the cache holds; "" if something may be."""
        if self._is_closed:
            return "busy"
        if not self._ranks.is_first or self._tree.unfit():
            return "misfit"
        return self._misfit(question.tokens, question.cache_salt, question.prompt_digest)

    def _misfit(self, tokens: Sequence[int], salt: str, digest: str) -> OfferReason:
        own = prompt_digest(tokens, cache_salt=salt, weights=self._weights())
        return "" if digest == own else "misfit"

    def _hold_all(self, decision: Hold) -> None:
        """Holds what this rank's cache has of it, if all ranks do."""
        offer = Offer(decision.number, decision.transfer, decision.prompt_digest, self._ranks.is_first, 0, [], "")
        waiting: _Waiting | None = None
        reason: OfferReason = "unavailable"
        try:
            # Whatever is found, the look-up has to be made: the others make it too.
            reason = self._hold(decision) or self._misfit(decision.tokens, decision.salt, decision.prompt_digest)
            waiting = None if reason else self._held_offer(offer)
        except Exception:
            self._logger.exception("a question of another engine is not answered")
        (is_held,) = self._ranks.all_have([waiting is not None])
        if waiting is not None and is_held:
            self._waiting.append(waiting)
            return
        self._let_go(decision.number)
        if self._ranks.is_first:
            self._exchange.submit(replace(offer, reason=reason or "unavailable"))

    def _held_offer(self, offer: Offer) -> _Waiting:
        held = self._held[offer.request]
        pages = [ChunkPages(0, self._tree.pages_of(held.slots))]
        return _Waiting(replace(offer, held_tokens=held.token_count, groups=pages), self._passes())

    def _hold(self, decision: Hold) -> OfferReason:
        """Holds what the cache has of it; why nothing is held, or ""."""
        if self._is_closed:
            return "busy"
        before_count = self._tree.protected_count()
        held = self._tree.hold(decision.tokens, decision.salt)
        newly_count = self._tree.protected_count() - before_count
        limit = self._rules.pages_share * self._tree.capacity_count()
        reason: OfferReason = "" if held.token_count else "not_held"
        if held.token_count and (sum(self._charged.values()) + newly_count > limit or self._tree.spare_count() < 0):
            reason = "busy"
        if reason:
            self._tree.let_go(held)
        else:
            self._held[decision.number], self._charged[decision.number] = held, newly_count
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
        """This rank's messenger reads the pages of this offer no more; other numbers are ignored."""
        if number not in self._held:
            return
        self._given_at_seconds.pop(number, None)
        if self._ranks.is_alone:
            self._let_go(number)
        else:
            self._released.add(number)

    def votes(self) -> list[bool]:
        """For each offer whether this rank's messenger has released it, for ``agreed``."""
        return [number in self._released for number in self._held]

    def agreed(self, votes: Iterator[bool]) -> None:
        """Lets go what the messengers of all ranks have released; the votes about this object's offers come next."""
        for number in list(self._held):
            if next(votes):
                self._let_go(number)

    def _let_go(self, number: str) -> None:
        self._released.discard(number)
        self._charged.pop(number, None)
        if (held := self._held.pop(number, None)) is not None:
            self._tree.let_go(held)

    def withdraw(self) -> None:
        """What is offered is not to be fetched any more, unless that has begun."""
        for each in self._waiting:
            self.released(each.offer.request)
            if each.offer.asked:
                self._exchange.submit(replace(each.offer, held_tokens=0, groups=[], reason="not_held"))
        self._waiting.clear()
        for number in self._held.keys() - self._released:
            self._exchange.submit(Withdraw(number))

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Inside, each question is answered that this engine is busy; called by all ranks in the same round."""
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
