"""The asker's side of pulls: the beginning of a queued prompt is fetched from another engine's prefix cache.

A request that names such an engine asks it while it waits in the bootstrap queue. What the other engine holds beyond
this one's cache is fetched into pages of its own, and added to this engine's prefix cache once all of it has landed:
SGLang finds it there when it takes the request. So a request never depends on a pull. It waits for one only while it
could be computed, for as long as that is expected to be worth it; whatever else happens, it is computed.

No token of a pulled beginning is computed on both sides. So the first pull from an engine fetches all of the beginning,
and it is compared with a pass of this engine before it is used (``PullProof``).

Used by the scheduler's thread only.
"""

from __future__ import annotations

import enum
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.pull_hint import Unreadable, read_hint
from kv_connector.pulls.pull_prices import PullPrices
from kv_connector.runtime.commands import Ask, Decline, FetchPages, PrefillerAddress, PullEnded, PullOutcome
from kv_connector.runtime.facade import Offered
from kv_connector.sglang import weight_changes
from kv_connector.sglang.exchange import Exchange, Incoming
from kv_connector.sglang.pair_states import Arrival
from kv_connector.sglang.passes import PassesSoFar
from kv_connector.sglang.prefix_tree import Held, PrefixTree
from kv_connector.sglang.pull_proof import PullProof
from kv_connector.sglang.pull_rules import PullRules

PLACE = "custom_params"
"""Where a request of SGLang names its source."""
ASKS_MAX = 64
FETCH_LIMIT_SECONDS = 30.0
"""How long a pull may take whose worth is not known: no prompt has been computed yet."""
LANDING_SHARE_MAX = 0.5
"""The part of all pages into which pulls may land at a time."""
UNBOOKED = ("aborted", "unproven")
"""Outcomes that show nothing of what an answer is worth."""


class _State(enum.Enum):
    ASKED = "asked"
    TAKEN = "taken"
    """It has its landing, into which passes that were queued before may still write."""
    FETCHING = "fetching"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Pull:
    """One request's pull, which goes on to its end when the request does not wait for it any more."""

    pulls: Pulls
    ask: str
    source: Messengers
    tokens: Sequence[int]
    """Those that are asked for: whole pages."""
    salt: str
    transfer: str
    prompt_digest: str
    weights: str
    since_seconds: float
    late_at_seconds: float
    lacked_count: int
    """Those that are not in this engine's cache, when it asked."""
    state: _State = _State.ASKED
    waits_since_seconds: float | None = None
    """Since when the request would be computed, but for this."""
    left: bool = False
    """Whether the request is computed, or has ended."""
    is_unwanted: bool = False
    """Whether what arrives is not to be used: the cache is to be emptied."""
    answer_seconds: float = 0.0
    fetch_since_seconds: float = 0.0
    held: Held | None = None
    """What this engine's cache had of the beginning when the fetch began; held until it is over."""
    slots: Any = None
    """Those that the fetch fills."""
    end_count: int = 0
    """The tokens of the beginning that is fetched."""
    incoming: Incoming | None = None
    arrival: Arrival | None = None
    passes: PassesSoFar | None = None
    """Those that may still write to its landing: the fetch begins once they are over."""
    pages: Sequence[int] = ()
    """Those of the landing."""

    def keeps_waiting(self) -> bool:
        """Whether the request, which could be computed now, waits for it."""
        return self.pulls.keeps_waiting(self)

    def leave(self) -> None:
        """The request is computed now, or has ended; a second call does nothing."""
        self.pulls.leave(self)

    @property
    def fetched_count(self) -> int:
        """The tokens that are fetched."""
        return self.end_count - (self.held.token_count if self.held is not None else 0)

    @property
    def addresses(self) -> tuple[PrefillerAddress, ...]:
        """The messengers of the source."""
        return tuple(PrefillerAddress(each.host, each.port) for each in self.source)


class Pulls:
    """The pulls of one scheduler."""

    def __init__(
        self,
        tree: PrefixTree,
        rules: PullRules,
        exchange: Exchange,
        proof: PullProof,
        passes: Callable[[], PassesSoFar],
        weights: Callable[[], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``passes`` marks what is queued on the device now; ``weights`` names the current ones."""
        self._tree = tree
        self._rules = rules
        self._exchange = exchange
        self._proof = proof
        self._passes = passes
        self._weights = weights
        self._logger = logger
        self._now_seconds = now_seconds
        self._count = itertools.count(1)
        self._open: dict[str, Pull] = {}
        self.rate = PrefillRate(now_seconds)
        self._prices = PullPrices(rules, self.rate, now_seconds)

    # ---- a request comes

    def queued(self, request: Any) -> Pull | None:
        """A request is queued: the engine that it names is asked, if it names one and that is worth it."""
        if not self._rules.counts:
            return None
        try:
            return self._queued(request)
        except Exception:
            self._logger.exception("request %s is computed without a pull", request.rid)
            self._count_end("misfit")
            return None

    def _queued(self, request: Any) -> Pull | None:
        hint = read_hint(request.sampling_params.custom_params, PLACE)
        if hint is None:
            return None
        if isinstance(hint, Unreadable):
            self._count_end("malformed")
            self._logger.warning("request %s is computed here: %s", request.rid, hint.reason)
            return None
        tokens = self._asked_tokens(request)
        reason = self._unfit(request, hint.messengers, len(tokens))
        lacked_count = 0
        if not reason:
            lacked_count = len(tokens) - self._tree.held_count(tokens, request.cache_salt or "")
            gains = lacked_count > 0 if self._rules.always else self._prices.gains(hint.messengers, lacked_count)
            reason = "" if gains else "not_worth"
        if reason:
            self._count_end(reason)
            return None
        return self._ask(request, hint.messengers, tokens, lacked_count)

    def _asked_tokens(self, request: Any) -> Sequence[int]:
        """Whole pages, of which SGLang uses all if they are in its cache: the last token at least is computed."""
        prompt = request.origin_input_ids
        usable_count = min(len(prompt) - 1, int(request._compute_max_prefix_len(len(prompt))))
        return list(prompt[: self._tree.whole_pages(usable_count)])

    def _unfit(self, request: Any, source: Messengers, asked_count: int) -> PullOutcome | Literal[""]:
        if self._rules.asks_none_because:
            return self._rules.asks_none_because
        if _is_of_own_kind(request) or self._tree.unfit():
            return "misfit"
        if self._is_own(source):
            return "not_worth"
        if self._proof.is_impossible():
            return "unproven"
        if asked_count < self._rules.tokens_min or not self._prices.is_worth(source, asked_count):
            return "not_worth"
        return "busy" if sum(each.state is _State.ASKED for each in self._open.values()) >= ASKS_MAX else ""

    def _is_own(self, source: Messengers) -> bool:
        opened = self._exchange.opened
        return [(each.host, each.port) for each in source] == [(opened.control_host, opened.control_port)]

    def _ask(self, request: Any, source: Messengers, tokens: Sequence[int], lacked_count: int) -> Pull | None:
        self._prices.asked(source)
        now_seconds, limit_seconds = self._now_seconds(), self._prices.ask_limit_seconds(lacked_count)
        salt, weights = request.cache_salt or "", self._weights()
        pull = Pull(
            self,
            f"pull#{next(self._count)}",
            source,
            tokens,
            salt,
            f"pull-{uuid.uuid4().hex}",
            prompt_digest(tokens, cache_salt=salt, weights=weights),
            weights,
            now_seconds,
            now_seconds + limit_seconds,
            lacked_count,
        )
        asked = self._exchange.submit(
            Ask(
                request=pull.ask,
                transfer=pull.transfer,
                prompt_digest=pull.prompt_digest,
                prefillers=pull.addresses,
                prompt_token_ids=tokens,
                cache_salt=salt,
                priority=0,
                limit_millis=max(1, round(limit_seconds * 1000)),
            )
        )
        if not asked:
            self._count_end("unreachable")
            return None
        self._open[pull.ask] = pull
        return pull

    # ---- a request waits

    def keeps_waiting(self, pull: Pull) -> bool:
        """See ``Pull.keeps_waiting``."""
        if pull.state is _State.OVER or pull.left:
            return False
        if pull.waits_since_seconds is None:
            pull.waits_since_seconds = self._now_seconds()
        return not (pull.incoming is not None and pull.incoming.quarantine)

    def leave(self, pull: Pull) -> None:
        """See ``Pull.leave``."""
        if pull.left or pull.state is _State.OVER:
            return
        pull.left = True
        if pull.state in (_State.ASKED, _State.TAKEN):
            self._give_back(pull)
            self._decline(pull, "aborted")
        elif pull.incoming is not None:
            self._exchange.abandon(pull.incoming)

    # ---- progress

    def poll(self) -> None:
        """Looks after all pulls; called once a round of the scheduler."""
        for pull in list(self._open.values()):
            if pull.state is _State.ASKED and self._now_seconds() >= pull.late_at_seconds:
                self._decline(pull, "late")
            elif pull.state is _State.TAKEN:
                self._begin_fetch(pull)
            elif pull.incoming is not None and pull.incoming.ended:
                self._fetch_ended(pull, pull.incoming)

    def offered(self, event: Offered) -> None:
        """The engine that was asked has answered."""
        pull = self._open.get(event.request)
        if pull is None or pull.state is not _State.ASKED:
            return
        pull.answer_seconds = self._now_seconds() - pull.since_seconds
        if event.reason != "late":
            self._prices.answered(pull.source)
        held_count = min(self._tree.whole_pages(event.held_tokens), len(pull.tokens))
        if held_count <= 0:
            self._end(pull, event.reason or "not_held")
            return
        try:
            reason = self._fetch(pull, held_count)
        except Exception:
            self._logger.exception("a pull does not begin")
            self._give_back(pull)
            reason = "misfit"
        if reason:
            self._decline(pull, reason)

    def _fetch(self, pull: Pull, held_count: int) -> PullOutcome | Literal[""]:
        """Fetches what the other engine holds; why it is not fetched, or ""."""
        arrival = Arrival()
        refusal = self._proof.pairs.fetching(arrival, pull.addresses)
        if refusal:
            return "unproven"
        whole = self._proof.is_due(arrival)
        held = self._tree.hold(pull.tokens[:held_count], pull.salt)
        pull.held, gained_count = held, held_count - held.token_count
        worth = self._rules.always or self._prices.is_worth(pull.source, gained_count)
        if gained_count < (1 if self._rules.always else self._rules.tokens_min) or not worth:
            self._give_back(pull)
            return "not_worth"
        if whole:
            self._tree.let_go(held)
            pull.held = held = self._tree.hold((), pull.salt)
        pull.slots = self._landing(held_count - held.token_count)
        if pull.slots is None:
            self._give_back(pull)
            return "busy"
        pull.arrival, pull.end_count, pull.fetch_since_seconds = arrival, held_count, self._now_seconds()
        pull.pages, pull.passes = self._tree.pages_of(pull.slots), self._passes()
        pull.state = _State.TAKEN
        self._begin_fetch(pull)
        return ""

    def _begin_fetch(self, pull: Pull) -> None:
        """Begins the fetch if nothing of this engine writes to its landing any more.

        SGLang gives the pages of an aborted chunk to others while its pass is still queued: passes behind it would
        write to them later, and another engine may write earlier.
        """
        if pull.held is None or pull.passes is None or not pull.passes.are_over():
            return
        pull.incoming = self._exchange.fetch_offered(
            (pull.transfer, pull.prompt_digest),
            pull.addresses,
            (pull.held.token_count, pull.end_count),
            [FetchPages(pull.pages)],
            limit_seconds=self._prices.fetch_limit_seconds(pull.fetched_count) or FETCH_LIMIT_SECONDS,
            answer_seconds=pull.answer_seconds,
        )
        pull.state = _State.FETCHING

    def _landing(self, token_count: int) -> Any | None:
        landing_count = sum(len(each.slots) for each in self._open.values() if each.slots is not None)
        if landing_count + token_count > LANDING_SHARE_MAX * self._tree.capacity_count():
            return None
        return self._tree.take(token_count)

    # ---- its end

    def _fetch_ended(self, pull: Pull, incoming: Incoming) -> None:
        """Nothing writes to the landing any more."""
        outcome: PullOutcome = "aborted" if pull.left else "failed"
        try:
            if incoming.arrived and not pull.is_unwanted:
                outcome = self._landed(pull, incoming)
        except Exception:
            self._logger.exception("a pulled beginning is not used")
        fetch_seconds = self._now_seconds() - pull.fetch_since_seconds
        self._prices.pulled(pull.source, pull.fetched_count, pull.answer_seconds + fetch_seconds)
        fetched_count = pull.fetched_count
        self._give_back(pull)
        self._end(pull, outcome, fetched_count, fetch_seconds)

    def _landed(self, pull: Pull, incoming: Incoming) -> PullOutcome:
        held, arrival = pull.held, pull.arrival
        if held is None or arrival is None:
            raise AssertionError("a landing without its beginning")
        if pull.weights != self._weights():
            return "misfit"
        arrival.sessions = incoming.sessions
        if not self._proof.proves(arrival, pull.tokens, pull.slots, pull.end_count):
            return "unproven"
        tokens = pull.tokens[: pull.end_count]
        if self._tree.is_being_computed(tokens, pull.salt):
            return "not_worth"
        slots, pull.slots = pull.slots, None
        weight_changes.CACHED.filled()
        self._tree.add(tokens, pull.salt, held.slots, slots)
        return "arrived"

    def _give_back(self, pull: Pull) -> None:
        """Gives back what the pull holds; what has landed is the cache's by then, or lost."""
        slots, pull.slots = pull.slots, None
        if slots is not None:
            self._tree.give_back(slots)
        held, pull.held = pull.held, None
        if held is not None:
            self._tree.let_go(held)

    def _decline(self, pull: Pull, outcome: PullOutcome) -> None:
        self._exchange.submit(Decline(pull.transfer, pull.prompt_digest, pull.addresses))
        self._end(pull, outcome)

    def _end(self, pull: Pull, outcome: PullOutcome, fetched_count: int = 0, fetch_seconds: float = 0.0) -> None:
        pull.state = _State.OVER
        self._open.pop(pull.ask, None)
        if outcome not in UNBOOKED:
            self._book(pull, fetched_count if outcome == "arrived" else 0)
        self._count_end(outcome, fetched_count, pull.answer_seconds, fetch_seconds)

    def _book(self, pull: Pull, pulled_count: int) -> None:
        """Takes into account what the question has cost or saved."""
        begun_seconds = pull.waits_since_seconds
        waited_seconds = 0.0 if begun_seconds is None else self._now_seconds() - begun_seconds
        self._prices.ended(pull.source, pull.lacked_count, waited_seconds, min(pulled_count, pull.lacked_count))

    def _count_end(
        self, outcome: PullOutcome, tokens: int = 0, answer_seconds: float = 0.0, fetch_seconds: float = 0.0
    ) -> None:
        self._exchange.submit(PullEnded(outcome, tokens, round(answer_seconds * 1e6), round(fetch_seconds * 1e6)))

    def abandon_all(self) -> None:
        """No request waits for its pull any more, and nothing that arrives is used."""
        for pull in list(self._open.values()):
            pull.is_unwanted = True
            self.leave(pull)

    def on_lost(self) -> None:
        """The messenger is closed: it writes to no page any more, and answers no question."""
        for pull in list(self._open.values()):
            self._give_back(pull)
            self._end(pull, "unreachable")

    def landing_count(self) -> int:
        """The number of pulls that hold pages."""
        return sum(each.state in (_State.TAKEN, _State.FETCHING) for each in self._open.values())


def _is_of_own_kind(request: Any) -> bool:
    """Whether the tokens alone do not say what the KV of the prompt is."""
    named = request.lora_id or request.extra_key or request.session_id or request.session is not None
    return bool(named or request.multimodal_inputs or request.input_embeds or request.positional_embed_overrides)
