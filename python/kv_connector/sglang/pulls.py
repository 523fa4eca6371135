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
import uuid
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.naming.prompt_digest import prompt_digest
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.price_reports import PriceReports
from kv_connector.pulls.pull_hint import Unreadable, read_hint
from kv_connector.pulls.pull_prices import PullPrices
from kv_connector.runtime.commands import Ask, Decline, PrefillerAddress, PullEnded, PullOutcome
from kv_connector.runtime.facade import Offered
from kv_connector.sglang.landings import Land, LandingEnd, Landings, Leave, PullingRank
from kv_connector.sglang.pull_rules import PullRules

PLACE = "custom_params"
"""Where a request of SGLang names its source."""
ASKS_MAX = 64
FETCH_LIMIT_SECONDS = 30.0
"""How long a pull may take whose worth is not known: no prompt has been computed yet."""
UNBOOKED = ("aborted", "unproven")
"""Outcomes that show nothing of what an answer is worth."""


class _State(enum.Enum):
    ASKED = "asked"
    LANDING = "landing"
    """What is offered is fetched by all ranks, or will be from their next round on."""
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
    answer_seconds: float = 0.0
    moving_count: int = 0
    mark: float = 0.0
    """Of the transfer's beginning, among others from that engine."""
    """The tokens that were to move when ranks began to fetch them."""

    def keeps_waiting(self) -> bool:
        """Whether the request, which could be computed now, waits for it."""
        return self.pulls.keeps_waiting(self)

    def leave(self) -> None:
        """The request is computed now, or has ended; a second call does nothing."""
        self.pulls.leave(self)

    @property
    def addresses(self) -> tuple[PrefillerAddress, ...]:
        """All messengers of the source; the first one is asked."""
        return tuple(PrefillerAddress(each.host, each.port) for each in self.source)


class Pulls:
    """The pulls of one scheduler."""

    def __init__(self, own: PullingRank, rules: PullRules) -> None:
        self._own = own
        self._rules = rules
        self._count = itertools.count(1)
        self._open: dict[str, Pull] = {}
        self.rate = PrefillRate(own.now_seconds)
        self._prices = PullPrices(rules, self.rate, own.now_seconds)
        self._reports = PriceReports(self._prices.transfers, self.rate, own.now_seconds)
        self.landings = Landings(
            own,
            lambda token_count: self._prices.fetch_limit_seconds(token_count) or FETCH_LIMIT_SECONDS,
            self._landing_over,
        )

    # ---- a request comes

    def queued(self, request: Any) -> Pull | None:
        """A request is queued: the engine that it names is asked, if it names one and that is worth it.

        It comes to all ranks, and the first one asks: a request waits as long as one of them says so.
        """
        if not self._rules.counts:
            return None
        try:
            return self._queued(request)
        except Exception:
            self._own.logger.exception("request %s is computed without a pull", request.rid)
            self._count_end("misfit")
            return None

    def _queued(self, request: Any) -> Pull | None:
        hint = read_hint(request.sampling_params.custom_params, PLACE)
        if hint is None:
            return None
        if isinstance(hint, Unreadable):
            self._count_end("malformed")
            self._own.logger.warning("request %s is computed here: %s", request.rid, hint.reason)
            return None
        tokens = self._asked_tokens(request)
        source = self._source(request, hint.sources, len(tokens))
        if isinstance(source, tuple):
            lacked_count = len(tokens) - self._own.tree.held_count(tokens, request.cache_salt or "")
            gains = lacked_count > 0 if self._rules.always else self._prices.gains(source, lacked_count)
            if gains:
                return self._ask(request, source, tokens, lacked_count)
        self._count_end("not_worth" if isinstance(source, tuple) else source)
        return None

    def _asked_tokens(self, request: Any) -> Sequence[int]:
        """Whole pages, of which SGLang uses all if they are in its cache: the last token at least is computed."""
        prompt = request.origin_input_ids
        usable_count = min(len(prompt) - 1, int(request._compute_max_prefix_len(len(prompt))))
        return list(prompt[: self._own.tree.whole_pages(usable_count)])

    def _source(self, request: Any, named: Sequence[Messengers], asked_count: int) -> Messengers | PullOutcome:
        """The engine to ask, or why none is asked."""
        if self._rules.asks_none_because:
            return self._rules.asks_none_because
        fitting = [source for source in named if self.landings.addresses_in(source)]
        if _is_of_own_kind(request) or self._own.tree.unfit() or not fitting:
            return "misfit"
        others = [source for source in fitting if not self._is_own(source)]
        if not others:
            return "not_worth"
        if self._own.proof.is_impossible():
            return "unproven"
        if asked_count < self._rules.tokens_min:
            return "not_worth"
        source = self._prices.choose(others, asked_count)
        if source is None:
            return "unreachable"
        if not self._prices.is_worth(source, asked_count):
            return "not_worth"
        return "busy" if sum(each.state is _State.ASKED for each in self._open.values()) >= ASKS_MAX else source

    def _is_own(self, source: Messengers) -> bool:
        opened = self._own.exchange.opened
        return (source[0].host, source[0].port) == (opened.control_host, opened.control_port)

    def _ask(self, request: Any, source: Messengers, tokens: Sequence[int], lacked_count: int) -> Pull | None:
        self._prices.asked(source)
        now_seconds, limit_seconds = self._own.now_seconds(), self._prices.ask_limit_seconds(lacked_count)
        salt, weights = request.cache_salt or "", self._own.weights()
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
        asked = self._own.exchange.submit(
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
            self._prices.transfers.question_over(source)
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
            pull.waits_since_seconds = self._own.now_seconds()
        return not self.landings.is_stuck(pull.ask)

    def leave(self, pull: Pull) -> None:
        """See ``Pull.leave``."""
        if pull.left or pull.state is _State.OVER:
            return
        pull.left = True
        if pull.state is _State.ASKED:
            self._decline(pull, "aborted")
        else:
            self._own.ranks.decide(Leave(pull.ask))

    # ---- progress

    def poll(self) -> None:
        """Looks after those that wait for an answer; called once a round of the scheduler."""
        for pull in list(self._open.values()):
            if pull.state is _State.ASKED and self._own.now_seconds() >= pull.late_at_seconds:
                self._decline(pull, "late")
        if self._rules.counts and (prices := self._reports.due()) is not None:
            self._own.exchange.submit(prices)

    def offered(self, event: Offered) -> None:
        """The engine that was asked has answered."""
        pull = self._open.get(event.request)
        if pull is None or pull.state is not _State.ASKED:
            return
        pull.answer_seconds = self._own.now_seconds() - pull.since_seconds
        if event.reason not in ("late", "unreachable"):
            self._prices.answered(pull.source, pull.answer_seconds, event.reason)
        held_count = min(self._own.tree.whole_pages(event.held_tokens), len(pull.tokens))
        if held_count <= 0:
            self._end(pull, event.reason or "not_held")
            return
        reason = self._land(pull, pull.tokens[:held_count])
        if reason:
            self._decline(pull, reason)

    def _land(self, pull: Pull, tokens: Sequence[int]) -> PullOutcome | Literal[""]:
        """Has all ranks fetch what the other engine holds; why it is not fetched, or ""."""
        if pull.weights != self._own.weights():
            return "misfit"
        gained_count = len(tokens) - self._own.tree.held_count(tokens, pull.salt)
        gained_min = 1 if self._rules.always else self._rules.tokens_min
        worth = self._rules.always or self._prices.is_worth(pull.source, gained_count, is_answered=True)
        if gained_count < gained_min or not worth:
            return "not_worth"
        decision = Land(
            pull.ask,
            pull.source,
            array("q", tokens),
            pull.salt,
            pull.transfer,
            pull.prompt_digest,
            pull.weights,
            gained_min,
            pull.answer_seconds,
        )
        pull.state, pull.moving_count = _State.LANDING, gained_count
        pull.mark = self._prices.transfers.moves(pull.source, gained_count)
        self._own.ranks.decide(decision)
        return ""

    # ---- its end

    def _landing_over(self, ask: str, end: LandingEnd) -> None:
        """All ranks are through with it."""
        pull = self._open.get(ask)
        if pull is None:  # not the first rank, or its messenger is closed
            return
        if end.fetched_count:
            self._prices.pulled(pull.source, end.fetched_count, pull.answer_seconds + end.seconds)
        if end.is_declined:
            self._end(pull, end.outcome, end.fetched_count, end.seconds)
        else:
            self._decline(pull, end.outcome)

    def _decline(self, pull: Pull, outcome: PullOutcome) -> None:
        self._own.exchange.submit(Decline(pull.transfer, pull.prompt_digest, pull.addresses))
        self._end(pull, outcome)

    def _end(self, pull: Pull, outcome: PullOutcome, fetched_count: int = 0, fetch_seconds: float = 0.0) -> None:
        asked_seconds = min(self._own.now_seconds(), pull.late_at_seconds) - pull.since_seconds
        self._prices.ended_as(pull.source, outcome, asked_seconds)
        if pull.state is _State.LANDING:
            own_seconds = self._prices.transfers.over(pull.source, pull.moving_count, pull.mark)
            self._prices.fetched(pull.source, fetched_count, fetch_seconds, own_seconds, outcome)
        pull.state = _State.OVER
        self._open.pop(pull.ask, None)
        if outcome not in UNBOOKED:
            self._book(pull, fetched_count if outcome == "arrived" else 0)
        self._count_end(outcome, fetched_count, pull.answer_seconds, fetch_seconds)

    def _book(self, pull: Pull, pulled_count: int) -> None:
        """Takes into account what the question has cost or saved."""
        begun_seconds = pull.waits_since_seconds
        waited_seconds = 0.0 if begun_seconds is None else self._own.now_seconds() - begun_seconds
        self._prices.ended(pull.source, pull.lacked_count, waited_seconds, min(pulled_count, pull.lacked_count))

    def _count_end(
        self, outcome: PullOutcome, tokens: int = 0, answer_seconds: float = 0.0, fetch_seconds: float = 0.0
    ) -> None:
        self._own.exchange.submit(PullEnded(outcome, tokens, round(answer_seconds * 1e6), round(fetch_seconds * 1e6)))

    def abandon_all(self) -> None:
        """No request waits for its pull any more, and nothing that arrives is used; all ranks do it in one round."""
        for pull in list(self._open.values()):
            self.leave(pull)
        self.landings.abandon_all()

    def on_lost(self) -> None:
        """The messenger is closed: it writes to no page any more, and answers no question."""
        self.landings.on_lost()
        for pull in list(self._open.values()):
            if pull.state is _State.ASKED:
                self._end(pull, "unreachable")

    def landing_count(self) -> int:
        """The number of pulls that hold pages."""
        return self.landings.count()


def _is_of_own_kind(request: Any) -> bool:
    """Whether the tokens alone do not say what the KV of the prompt is."""
    named = request.lora_id or request.extra_key or request.session_id or request.session is not None
    return bool(named or request.multimodal_inputs or request.input_embeds or request.positional_embed_overrides)
