"""Where what is pulled lands: pages that no request has, which go into the prefix cache once all of it has arrived.

Every rank of an engine has its part of each landing, from its own source ranks. All take the pages in the same round,
and none uses them before the last rank has its part: see ``pull_ranks.py``. What a rank does by itself is to fetch.

Used by the scheduler's thread only.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.runtime.commands import Decline, FetchPages, PrefillerAddress, PullOutcome
from kv_connector.sglang import weight_changes
from kv_connector.sglang.exchange import Exchange, Incoming
from kv_connector.sglang.pair_states import Arrival
from kv_connector.sglang.passes import PassesSoFar
from kv_connector.sglang.prefix_tree import Held, PrefixTree
from kv_connector.sglang.pull_proof import PullProof
from kv_connector.sglang.pull_ranks import PullRanks

LANDING_SHARE_MAX = 0.5
"""The part of all pages into which pulls may land at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Land:
    """A decision: this beginning is fetched, by all ranks."""

    ask: str
    """The pull's name."""
    source: Messengers
    tokens: array[int]
    """All that is offered: whole pages."""
    salt: str
    transfer: str
    prompt_digest: str
    weights: str
    """Those by whose name it was asked for; ranks may get others before they receive the decision."""
    gained_min: int
    """How many tokens are worth a fetch."""
    answer_seconds: float


@dataclass(frozen=True, slots=True)
class Leave:
    """A decision: no request waits for this landing any more."""

    ask: str


@dataclass(frozen=True, slots=True)
class LandingEnd:
    """What came of a landing, on all ranks."""

    outcome: PullOutcome
    is_declined: bool = False
    """Whether the source has been answered that it is not fetched, or need not be."""
    fetched_count: int = 0
    """The tokens that were to be fetched; 0 = the fetch did not begin."""
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Landing:
    """One rank's part of a pull."""

    decision: Land
    addresses: tuple[PrefillerAddress, ...]
    """The source's messengers that hold this rank's part."""
    arrival: Arrival
    since_seconds: float
    held: Held | None = None
    """What this engine's cache had of the beginning; held until the landing is over."""
    slots: Any = None
    """Those that the fetch fills."""
    pages: Sequence[int] = ()
    passes: PassesSoFar | None = None
    """Those that may still write to them: the fetch begins once they are over."""
    incoming: Incoming | None = None
    """The fetch; None = it has not begun."""
    left: bool = False
    """Whether no request waits for it any more."""
    is_given_up: bool = False
    """Whether this rank has ended its fetch, or begins none."""
    is_unwanted: bool = False
    """Whether what arrives is not to be used: the cache is to be emptied."""
    is_lost: bool = False
    """Whether the messenger is closed, which writes to no page any more."""
    is_stuck: bool = False
    """Whether a rank's pages may be written to although its fetch will not arrive."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of this rank writes to its pages any more, and nothing will."""
        return self.is_lost or (self.is_given_up if self.incoming is None else self.incoming.ended)

    @property
    def has_failed(self) -> bool:
        """Whether what is pulled will not be used, as far as this rank knows."""
        failed = self.is_given_up if self.incoming is None else bool(self.incoming.failure)
        return failed or self.is_lost or self.is_unwanted

    @property
    def is_quarantined(self) -> bool:
        """Whether this rank's pages may be written to although its fetch will not arrive."""
        return self.incoming is not None and bool(self.incoming.quarantine) and not self.incoming.ended

    @property
    def fetched_count(self) -> int:
        """The tokens that are fetched."""
        return len(self.decision.tokens) - (self.held.token_count if self.held is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullingRank:
    """What pulls use of the rank that pulls."""

    tree: PrefixTree
    exchange: Exchange
    proof: PullProof
    ranks: PullRanks
    passes: Callable[[], PassesSoFar]
    """Marks what is queued on the device now."""
    weights: Callable[[], str]
    """Names the current ones."""
    source_ranks: Callable[[int], Sequence[int]]
    """Which of an engine's so many ranks hold a part of this rank's KV."""
    logger: logging.Logger
    now_seconds: Callable[[], float] = time.monotonic


class Landings:
    """The landings of one rank."""

    def __init__(
        self,
        own: PullingRank,
        limit_seconds: Callable[[int], float],
        on_end: Callable[[str, LandingEnd], None],
    ) -> None:
        """``limit_seconds``: how long the fetch of so many tokens may take."""
        self._own = own
        self._limit_seconds = limit_seconds
        self._on_end = on_end
        self._open: dict[str, Landing] = {}
        own.ranks.on(Land, self._begin)
        own.ranks.on(Leave, self._leave)

    def addresses_in(self, source: Messengers) -> tuple[PrefillerAddress, ...]:
        """Those of the source's messengers that hold this rank's part; none if its ranks do not match."""
        return tuple(
            PrefillerAddress(source[rank].host, source[rank].port) for rank in self._own.source_ranks(len(source))
        )

    def count(self) -> int:
        """The number of landings; equal on all ranks."""
        return len(self._open)

    def is_stuck(self, ask: str) -> bool:
        """Whether nothing will come of it, although it is not over."""
        landing = self._open.get(ask)
        return landing is not None and (landing.is_stuck or landing.is_quarantined)

    # ---- begin

    def _begin(self, decision: Land) -> None:
        """Takes the pages, on all ranks or on none."""
        arrival, addresses = Arrival(), self.addresses_in(decision.source)
        refused, whole = self._own.ranks.any_has(self._seen(arrival, addresses))
        taken: Landing | PullOutcome = "unproven"
        if not refused:
            try:
                taken = self._taken(Landing(decision, addresses, arrival, self._own.now_seconds()), whole)
            except Exception:
                self._own.logger.exception("a pull does not begin")
                taken = "misfit"
        landing = taken if isinstance(taken, Landing) else None
        (is_begun,) = self._own.ranks.all_have([landing is not None])
        if landing is not None and is_begun:
            self._open[decision.ask] = landing
            self._fetch(landing)
            return
        self._give_back(landing)
        self._on_end(decision.ask, LandingEnd("misfit" if isinstance(taken, Landing) else taken))

    def _seen(self, arrival: Arrival, addresses: tuple[PrefillerAddress, ...]) -> list[bool]:
        """Whether the source is known to compute another KV, and whether the beginning is to be compared."""
        try:
            refused = not addresses or bool(self._own.proof.pairs.fetching(arrival, addresses))
            return [refused, not refused and self._own.proof.is_due(arrival)]
        except Exception:
            self._own.logger.exception("a pull does not begin")
            return [True, False]

    def _taken(self, landing: Landing, whole: bool) -> Landing | PullOutcome:
        """The landing, with its pages; or why there are none. ``whole``: from the first token on."""
        decision = landing.decision
        if decision.weights != self._own.weights():
            return "misfit"
        landing.held = held = self._own.tree.hold(decision.tokens, decision.salt)
        if landing.fetched_count < decision.gained_min:
            self._give_back(landing)
            return "not_worth"
        if whole:
            self._own.tree.let_go(held)
            landing.held = self._own.tree.hold((), decision.salt)
        landing.slots = self._slots(landing.fetched_count)
        if landing.slots is None:
            self._give_back(landing)
            return "busy"
        landing.pages, landing.passes = self._own.tree.pages_of(landing.slots), self._own.passes()
        return landing

    def _slots(self, token_count: int) -> Any | None:
        landing_count = sum(each.fetched_count for each in self._open.values())
        if landing_count + token_count > LANDING_SHARE_MAX * self._own.tree.capacity_count():
            return None
        return self._own.tree.take(token_count)

    def _fetch(self, landing: Landing) -> None:
        """Begins the fetch if nothing of this engine writes to the pages any more.

        SGLang gives the pages of an aborted chunk to others while its pass is still queued: passes behind it would
        write to them later, and another engine may write earlier.
        """
        if landing.incoming is not None or landing.is_over or landing.passes is None or not landing.passes.are_over():
            return
        decision = landing.decision
        landing.incoming = self._own.exchange.fetch_offered(
            (decision.transfer, decision.prompt_digest),
            landing.addresses,
            (len(decision.tokens) - landing.fetched_count, len(decision.tokens)),
            [FetchPages(landing.pages)],
            limit_seconds=self._limit_seconds(landing.fetched_count),
            answer_seconds=decision.answer_seconds,
        )

    # ---- progress

    def votes(self) -> list[bool]:
        """What this rank knows of each landing, for ``agreed``."""
        votes: list[bool] = []
        for each in self._open.values():
            has_arrived = each.incoming is not None and each.incoming.arrived
            sound = not each.has_failed and (not has_arrived or each.decision.weights == self._own.weights())
            votes += [each.is_over, sound, not each.is_quarantined]
        return votes

    def agreed(self, votes: Iterator[bool]) -> None:
        """Goes on with each landing by the votes of all ranks, of which those of this object come next."""
        for landing in list(self._open.values()):
            is_over, sound, is_free = next(votes), next(votes), next(votes)
            landing.is_stuck = not is_free
            if is_over:
                self._end(landing, sound=sound)
            elif not sound:
                self._give_up(landing)
            else:
                self._fetch(landing)

    def _leave(self, decision: Leave) -> None:
        landing = self._open.get(decision.ask)
        if landing is None:
            return
        landing.left = True
        self._give_up(landing)
        if self._own.ranks.is_alone and landing.is_over:
            self._end(landing, sound=False)

    def _give_up(self, landing: Landing) -> None:
        """This rank's part is fetched no more; what writes to it goes on until the messenger has reported its end."""
        if landing.incoming is not None and not landing.is_given_up:
            self._own.exchange.abandon(landing.incoming)
        landing.is_given_up = True

    # ---- end

    def _end(self, landing: Landing, *, sound: bool) -> None:
        """No rank's pages are written to any more."""
        del self._open[landing.decision.ask]
        outcome: PullOutcome = "failed"
        if landing.is_lost:
            outcome = "unreachable"
        elif landing.left:
            outcome = "aborted"
        elif landing.decision.weights != self._own.weights():
            outcome = "misfit"
        if sound:
            try:
                outcome = self._landed(landing)
            except Exception:
                outcome = "failed"
                self._own.logger.exception("a pulled beginning is not used")
        end = LandingEnd(outcome, True, landing.fetched_count, self._own.now_seconds() - landing.since_seconds)
        if landing.incoming is None:
            end = LandingEnd(outcome, True)
            self._decline(landing)
        self._give_back(landing)
        self._on_end(landing.decision.ask, end)

    def _decline(self, landing: Landing) -> None:
        decision = landing.decision
        self._own.exchange.submit(Decline(decision.transfer, decision.prompt_digest, landing.addresses))

    def _landed(self, landing: Landing) -> PullOutcome:
        decision, held, arrival = landing.decision, landing.held, landing.arrival
        if held is None or landing.incoming is None:
            raise AssertionError("a landing without its beginning")
        arrival.sessions = landing.incoming.sessions
        if not self._own.proof.proves(arrival, decision.tokens, landing.slots, len(decision.tokens)):
            return "unproven"
        if self._own.tree.is_being_computed(decision.tokens, decision.salt):
            return "not_worth"
        slots, landing.slots = landing.slots, None
        weight_changes.CACHED.filled()
        self._own.tree.add(decision.tokens, decision.salt, held.slots, slots)
        return "arrived"

    def _give_back(self, landing: Landing | None) -> None:
        """Gives back what a landing holds; what has landed is the cache's by then, or lost."""
        if landing is None:
            return
        slots, landing.slots = landing.slots, None
        if slots is not None:
            self._own.tree.give_back(slots)
        held, landing.held = landing.held, None
        if held is not None:
            self._own.tree.let_go(held)

    def abandon_all(self) -> None:
        """Nothing that arrives is used; called by all ranks in the same round."""
        for landing in list(self._open.values()):
            landing.is_unwanted = True
            self._leave(Leave(landing.decision.ask))

    def on_lost(self) -> None:
        """This rank's messenger is closed."""
        for landing in list(self._open.values()):
            landing.is_lost = True
            if self._own.ranks.is_alone:
                self._end(landing, sound=False)
