"""Everything of pulls in one scheduler: what it asks other engines for, and what it offers them.

Made anew with each messenger. Used by the scheduler's thread only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.runtime.facade import Asked, Offered
from kv_connector.sglang import weight_changes
from kv_connector.sglang.exchange import SETTLE_INTERVAL_SECONDS, Exchange
from kv_connector.sglang.idle_wake import IdleWake
from kv_connector.sglang.landings import Landings, PullingRank
from kv_connector.sglang.pair_states import PairStates
from kv_connector.sglang.passes import PassesSoFar
from kv_connector.sglang.prefix_tree import PrefixTree
from kv_connector.sglang.pull_offers import Offers
from kv_connector.sglang.pull_proof import PullProof
from kv_connector.sglang.pull_ranks import PullRanks, ranks_of
from kv_connector.sglang.pull_rules import PullRules
from kv_connector.sglang.pulls import Pull, Pulls

LET_GO_LIMIT_SECONDS = 2.0
"""How long an engine that empties its prefix cache waits for what others fetch from it, which takes milliseconds."""


@dataclass(slots=True)
class _Step:
    step: int
    reports_end: bool = False


class MeasuredPasses:
    """Measures how fast the scheduler computes prompts."""

    def __init__(self, scheduler: Any, rate: PrefillRate) -> None:
        self._scheduler = scheduler
        self._rate = rate
        self._step = 0
        self._queued: deque[tuple[int, PassesSoFar]] = deque()

    def run(self, token_count: int, forward: Callable[[], Any]) -> Any:
        """Runs a pass that computes so many tokens of prompts; returns the result of ``forward``."""
        self._step += 1
        step = _Step(self._step)
        self._rate.step_begins(step, token_count)
        result = forward()
        if step.reports_end:
            self._queued.append((step.step, PassesSoFar(self._scheduler)))
            self.poll()
        return result

    def poll(self) -> None:
        """Takes note of the passes that are over."""
        while self._queued and self._queued[0][1].are_over():
            self._rate.step_over(self._queued.popleft()[0])


def agree(ranks: PullRanks, landings: Landings, offers: Offers) -> None:
    """What all ranks of an engine do in one round: what was said, and what all their messengers have ended."""
    ranks.carry_out()
    agreed = iter(ranks.all_have([*landings.votes(), *offers.votes()]))
    landings.agreed(agreed)
    offers.agreed(agreed)


class PrefixPulls:
    """The two sides of pulls."""

    def __init__(
        self,
        scheduler: Any,
        server_args: Any,
        rules: PullRules,
        exchange: Exchange,
        source_ranks: Callable[[int], Sequence[int]],
        logger: logging.Logger,
    ) -> None:
        """``source_ranks``: which of an engine's so many ranks hold a part of this rank's KV."""
        self._exchange = exchange
        self._ranks = ranks = ranks_of(scheduler)
        self._is_overlooked = False
        weights, passes = weight_changes.name, lambda: PassesSoFar(scheduler)
        tree = PrefixTree(scheduler)
        pairs = PairStates(rules.check, weights=weights, logger=logger)
        proof = PullProof(scheduler, server_args, tree, pairs, exchange, ranks, logger)
        own = PullingRank(
            tree=tree,
            exchange=exchange,
            proof=proof,
            ranks=ranks,
            passes=passes,
            weights=weights,
            source_ranks=source_ranks,
            logger=logger,
        )
        self.asked_for = Pulls(own, rules)
        self.offers = Offers(tree, rules, exchange, ranks, passes, weight_changes.name_in_cache, logger)
        self.passes = MeasuredPasses(scheduler, self.asked_for.rate)
        self._idle_wake = IdleWake.of(scheduler, exchange)
        if exchange.on_connected is None:
            exchange.on_connected = pairs.connected
        exchange.pulls = self

    def queued(self, request: Any) -> Pull | None:
        """A request of this engine is queued."""
        return self.asked_for.queued(request)

    def poll(self) -> None:
        """Looks after both sides; called once a round of the scheduler, by all ranks."""
        self._exchange.drain()
        if self._idle_wake is not None:
            self._idle_wake.polled()
        self.passes.poll()
        landings = self.asked_for.landings
        agree(self._ranks, landings, self.offers)
        self.asked_for.poll()
        self.offers.poll()
        if self._idle_wake is not None and not self._ranks.is_alone and (self._ranks.awaits() or landings.count()):
            self._idle_wake.wake()  # what other ranks' messengers report wakes nothing

    def on_event(self, event: Asked | Offered) -> None:
        """The messenger has a question of another engine, or another engine's answer."""
        if isinstance(event, Asked):
            self.offers.asked(event)
        else:
            self.asked_for.offered(event)
        if self._idle_wake is not None and self._ranks.awaits():
            self._idle_wake.wake()

    def on_released(self, request: str) -> None:
        """Nothing reads the pages of an offer any more."""
        self.offers.released(request)

    def on_lost(self) -> None:
        """The messenger is closed."""
        self.asked_for.on_lost()
        self.offers.on_lost()

    def holds(self) -> bool:
        """Whether pages are kept from the scheduler, or in its cache."""
        return not self._is_overlooked and bool(self.asked_for.landing_count() or self.offers.held_count())

    @contextlib.contextmanager
    def overlooked(self) -> Iterator[None]:
        """Inside, nothing is said to be held: the engine's own requests alone decide whether it is idle."""
        self._is_overlooked = True
        try:
            yield
        finally:
            self._is_overlooked = False

    def close(self) -> None:
        """Ends it with its messenger."""
        self.let_go()
        if self._idle_wake is not None:
            self._idle_wake.close()

    def let_go(self) -> None:
        """Ends what can be ended, and waits for that for a limited time: the prefix cache is to be emptied.

        Nothing is offered meanwhile. All ranks wait for as long.
        """
        self._ranks.carry_out()
        self.asked_for.abandon_all()
        with self.offers.closed():
            self.offers.withdraw()
            deadline = time.monotonic() + LET_GO_LIMIT_SECONDS
            self.poll()
            while self.holds() and self._ranks.all_have([time.monotonic() < deadline]) == [True]:
                time.sleep(SETTLE_INTERVAL_SECONDS)
                self.poll()
