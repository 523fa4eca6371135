"""The asker's side of pulls: the beginning of a prompt is fetched from another engine's prefix cache.

A request that names such an engine asks it while it waits in the queue, without any page. It leaves the state ASKED by
the answer or after a short limit. If the offer is worth it, the request gets blocks for the offered tokens and fetches
them; the rest of its prompt is computed here. Anything else means that the whole prompt is computed here, with the
reason counted: a pull never fails a request.

No token of a pulled prefix is computed on both sides. So where ``last_token_check`` is to fail wrong KV, the first pull
from an engine is a shadow fetch, whose request is computed here (``ShadowFetches``).

Used by the engine core's thread only.
"""

from __future__ import annotations

import enum
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.pulls.prefill_rate import PrefillRate
from kv_connector.pulls.price_reports import PriceReports
from kv_connector.pulls.pull_hint import SOURCE, Pull, Unreadable
from kv_connector.pulls.pull_prices import PullPrices
from kv_connector.runtime.commands import Ask, Decline, Prices, PullEnded, PullOutcome
from kv_connector.runtime.facade import Offered
from kv_connector.vllm.held_prefix import held_prefix
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.messenger_commands import prefillers
from kv_connector.vllm.metadata import Fetch, Renamed, StepMetadata, Transfer
from kv_connector.vllm.misfits import stands_for_rejected, unfit_to_be_enqueued
from kv_connector.vllm.planned_fetches import fetch_of
from kv_connector.vllm.pull_params import read_pull
from kv_connector.vllm.pull_rules import PullRules
from kv_connector.vllm.request_name import read_name
from kv_connector.vllm.request_numbers import RequestNumbers, shown
from kv_connector.vllm.shadow_fetches import ShadowFetches
from kv_connector.vllm.transfer_params import Receive

ASKS_MAX = 64
UNBOOKED = ("aborted", "proves", "unproven")
"""Outcomes that show nothing of what an answer is worth."""
MAY_OFFER_PARTS = ("late", "unreachable", "misfit")
"""Answers with which messengers of the other engine may hold their parts of an offer: it may have come too late, or to
another messenger than the one that was asked."""


class _State(enum.Enum):
    ASKED = "asked"
    OFFERED = "offered"
    FETCHING = "fetching"


@dataclass(slots=True)
class _Pulling:
    request_id: str
    ask: str
    """The number of the question."""
    receive: Receive
    digest: str
    tokens: int
    """Those that are asked for."""
    late_at_seconds: float
    since_seconds: float
    """When it was asked; once it is fetched, when that began."""
    answer_seconds: float = 0.0
    """How long the answer took."""
    state: _State = _State.ASKED
    held_tokens: int = 0
    fetched_tokens: int = 0
    fetch_seconds: float = 0.0
    mark: float = 0.0
    """Of the transfer's beginning, among others from that engine."""
    arrivals: int = 0
    """The number of this engine's messengers that have all of their part."""
    lacked_tokens: int = 0
    """Those that are asked for and not in this engine's cache, when the engine last asked."""
    waits_since_seconds: float | None = None
    """Since when it would run, but for the answer."""
    waited_seconds: float = 0.0
    """For how long, once the answer has come: what it waits for then are pages."""
    why_not: PullOutcome | Literal[""] = ""
    """Why nothing would be fetched, when the engine last asked."""
    fails_as: PullOutcome = "failed"
    """What a fetch that does not arrive has come to: this engine may have given it up."""
    is_outdated: bool = False
    """Whether this engine has got other weights since: it has rested meanwhile, and no pull takes as long."""

    @property
    def source(self) -> Messengers:
        return self.receive.messengers

    @property
    def transfer(self) -> Transfer:
        return Transfer(self.receive.transfer, self.digest)


class Pulls:
    """The requests whose prompt's beginning may come from another engine."""

    def __init__(
        self,
        groups: Sequence[KvGroup],
        rules: PullRules,
        numbers: RequestNumbers,
        digest_of: Callable[[Any], str],
        messenger_count: int,
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._rules = rules
        self._numbers = numbers
        self._digest_of = digest_of
        self._messenger_count = messenger_count
        self._logger = logger
        self._now_seconds = now_seconds
        self._pulling: dict[str, _Pulling] = {}
        self._by_ask: dict[str, _Pulling] = {}
        """Those that wait for an answer, by the question's number."""
        self.rate = PrefillRate(now_seconds)
        self._prices = PullPrices(rules, self.rate, now_seconds)
        self._reports = PriceReports(self._prices.transfers, self.rate, now_seconds)
        self.own: Messengers = ()
        """This engine's messengers: what they have to offer is in its own cache."""
        self.ended: list[PullEnded] = []
        """What requests with a hint came to, since the last step."""
        self._pool: Any = None

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._pool = block_pool

    # ---- a request comes

    def queued(self, request: Any, meta: StepMetadata) -> None:
        """The engine has queued a request; one that names an engine to pull from asks it at once."""
        pull = read_pull(request.kv_transfer_params)
        if pull is None or read_name(request.request_id).choice > 0 or stands_for_rejected(request):
            return
        if isinstance(pull, Unreadable):
            self._count("malformed")
            self._logger.warning("request %s is computed here: %s", shown(request.request_id), pull.reason)
            return
        source = self._source(request, pull)
        if isinstance(source, str):
            self._count(source)
        else:
            self._ask(request, source, meta)

    def _source(self, request: Any, pull: Pull) -> Messengers | PullOutcome:
        """The engine to ask, or why none is asked."""
        if self._rules.asks_none_because:
            return self._rules.asks_none_because
        others = [source for source in pull.sources if source != self.own]
        if not others:
            return "not_worth"
        if request.skip_reading_prefix_cache or unfit_to_be_enqueued(request):
            return "misfit"
        tokens = self._asked_tokens(request)
        if tokens < self._rules.tokens_min:
            return "not_worth"
        source = self._prices.choose(others, tokens)
        if source is None:
            return "unreachable"
        if not self._prices.is_worth(source, tokens):
            return "not_worth"
        if len(self._by_ask) >= ASKS_MAX:
            return "busy"
        if self._rules.always:
            return source
        lacked_tokens = tokens - self._own_tokens(request, tokens)
        return source if self._prices.gains(source, lacked_tokens) else "not_worth"

    def _own_tokens(self, request: Any, tokens: int) -> int:
        """How many of the tokens this engine's cache has; 0 where the hashes are of other lengths than the blocks."""
        block_tokens = self._groups[0].block_tokens
        hashes = request.block_hashes
        if len(hashes) != int(request.num_prompt_tokens) // block_tokens:
            return 0
        asked, find = hashes[: tokens // block_tokens], self._pool.get_cached_block
        return held_prefix(self._groups, asked, find, has_drafts=self._rules.has_drafts).block_count * block_tokens

    def _asked_tokens(self, request: Any) -> int:
        """Whole blocks; the last token is computed here, because the answer begins with it."""
        block_tokens = self._groups[0].block_tokens
        return (int(request.num_prompt_tokens) - 1) // block_tokens * block_tokens

    def _ask(self, request: Any, source: Messengers, meta: StepMetadata) -> None:
        self._prices.asked(source)
        tokens = self._asked_tokens(request)
        ids = list(request.prompt_token_ids[:tokens])
        salt = getattr(request, "cache_salt", None) or ""
        digest = self._digest_of(SimpleNamespace(prompt_token_ids=ids, cache_salt=salt))
        limit_seconds = self._prices.ask_limit_seconds(tokens)
        receive = Receive(f"pull-{uuid.uuid4().hex}", source, "", decoder_first=False)
        now_seconds = self._now_seconds()
        pulling = _Pulling(
            request.request_id,
            self._numbers.nameless(),
            receive,
            digest,
            tokens,
            now_seconds + limit_seconds,
            now_seconds,
        )
        self._pulling[request.request_id] = self._by_ask[pulling.ask] = pulling
        meta.asks.append(
            Ask(
                request=pulling.ask,
                transfer=receive.transfer,
                prompt_digest=digest,
                prefillers=prefillers(source),
                prompt_token_ids=ids,
                cache_salt=salt,
                priority=getattr(request, "priority", 0),
                limit_millis=max(1, round(limit_seconds * 1000)),
            )
        )

    def matched_tokens(self, request: Any, computed_tokens: int, shadows: ShadowFetches) -> tuple[int | None, bool]:
        """As ``SchedulerHalf.matched_tokens``, for a request that is not fetched as a whole; changes no state."""
        name = read_name(request.request_id)
        if name.choice > 0 and name.first_choice in self._pulling:
            return None, False
        pulling = self._pulling.get(request.request_id)
        if pulling is None or pulling.state is _State.FETCHING:
            return 0, False
        pulling.lacked_tokens = pulling.tokens - computed_tokens
        if pulling.state is _State.ASKED and self._waits(pulling):
            return None, False
        pulling.why_not = self._why_not(pulling, computed_tokens)
        if pulling.why_not or not shadows.may_pull(request, pulling.receive):
            return 0, False
        return pulling.held_tokens - computed_tokens, True

    def _waits(self, pulling: _Pulling) -> bool:
        """Whether the request waits for the answer: the fewer tokens it lacks, the less it can gain."""
        now_seconds, lacked_tokens = self._now_seconds(), pulling.lacked_tokens
        if pulling.waits_since_seconds is None:
            if lacked_tokens < self._rules.tokens_min or not self._prices.may_wait(pulling.source, lacked_tokens):
                return False
            pulling.waits_since_seconds = now_seconds
        late_at_seconds = pulling.since_seconds + self._prices.ask_limit_seconds(lacked_tokens)
        return lacked_tokens >= self._rules.tokens_min and now_seconds < min(late_at_seconds, pulling.late_at_seconds)

    def _why_not(self, pulling: _Pulling, computed_tokens: int) -> PullOutcome | Literal[""]:
        """Why nothing is fetched for a request that gets its blocks now; "" if something is."""
        if pulling.lacked_tokens < self._rules.tokens_min:
            return "not_worth"
        if pulling.state is _State.ASKED:
            return "not_worth" if pulling.waits_since_seconds is None else "late"
        gained_tokens = pulling.held_tokens - computed_tokens
        worth = self._prices.is_worth(pulling.source, gained_tokens, is_answered=True)
        if gained_tokens < self._rules.tokens_min or not worth:
            return "not_worth"
        loses = any(group.loses_first_needed(pulling.held_tokens) for group in self._groups)
        if loses or computed_tokens % self._groups[0].block_tokens:
            return "misfit"
        return "expired" if self._now_seconds() >= pulling.late_at_seconds else ""

    def allocated(
        self,
        request: Any,
        block_ids: Sequence[Sequence[int]],
        external_tokens: int,
        meta: StepMetadata,
        shadows: ShadowFetches,
    ) -> Sequence[int] | None:
        """The request has its blocks; returns those that a fetch fills, None if nothing is fetched for it."""
        pulling = self._pulling.get(request.request_id)
        if pulling is None or pulling.state is _State.FETCHING:
            return None
        # A copy: requests that were split from one share the object. What is to be sent on stays.
        request.kv_transfer_params = {**request.kv_transfer_params, SOURCE: None}
        if external_tokens <= 0:
            self._compute(request, pulling, meta, shadows)
            return None
        self._by_ask.pop(pulling.ask, None)
        pulling.state = _State.FETCHING
        pulling.fetched_tokens = external_tokens
        pulling.mark = self._prices.transfers.moves(pulling.source, external_tokens)
        first_token = pulling.held_tokens - external_tokens
        groups = [
            table[group.needed(first_token, pulling.held_tokens)]
            for group, table in zip(self._groups, block_ids, strict=True)
        ]
        number = self._numbers.of(request.request_id)
        meta.fetches.append(self._fetch(request, pulling, number, first_token, groups))
        pulling.since_seconds = self._now_seconds()
        return [block for blocks in groups for block in blocks]

    def _fetch(
        self, request: Any, pulling: _Pulling, number: str, first_token: int, groups: Sequence[Sequence[int]]
    ) -> Fetch:
        tokens = (first_token, pulling.held_tokens)
        fetch = fetch_of(request, pulling.receive, pulling.transfer, number, tokens, groups)
        return replace(
            fetch,
            limit_seconds=self._prices.fetch_limit_seconds(pulling.held_tokens - first_token),
            answer_seconds=pulling.answer_seconds,
            pages_seconds=self._now_seconds() - pulling.since_seconds - pulling.answer_seconds,
        )

    def _compute(self, request: Any, pulling: _Pulling, meta: StepMetadata, shadows: ShadowFetches) -> None:
        """The request is computed here; its offer is declined, or fetched besides to prove the pair."""
        if not pulling.why_not and pulling.held_tokens:
            number = self._numbers.nameless()
            scratch = shadows.start_pull(request, pulling.receive, pulling.held_tokens, number)
            if scratch is not None:
                self._forget(pulling, "proves")
                meta.fetches.append(replace(self._fetch(request, pulling, number, 0, scratch), shadow=True))
                return
        self._end(pulling, pulling.why_not or "unproven", meta)

    def weights_changed(self, meta: StepMetadata) -> None:
        """What was asked for is KV of the weights before: it is not used, and computed here instead."""
        for pulling in list(self._pulling.values()):
            pulling.is_outdated = True
            if pulling.state is not _State.FETCHING:
                self._end(pulling, "misfit", meta)
            else:
                number = self._numbers.of(pulling.request_id)
                meta.renamed[number] = Renamed(number, None)
                pulling.fails_as = "misfit"

    # ---- what the workers report

    def offered(self, offers: Sequence[Offered], meta: StepMetadata) -> None:
        """The engines that were asked have answered."""
        for offer in offers:
            pulling = self._by_ask.pop(offer.request, None)
            if pulling is None:
                continue
            if offer.reason not in ("late", "unreachable"):
                answer_seconds = self._now_seconds() - pulling.since_seconds
                self._prices.answered(pulling.source, answer_seconds, offer.reason)
            if offer.held_tokens <= 0:
                self._forget(pulling, offer.reason or "not_held")
                if offer.reason in MAY_OFFER_PARTS and self._messenger_count * len(pulling.source) > 1:
                    # The messenger that has asked declines for itself, where it has asked.
                    meta.declines.append(Decline(*pulling.transfer, prefillers(pulling.source)))
            else:
                pulling.waited_seconds = self._waited_seconds(pulling)
                pulling.state = _State.OFFERED
                pulling.answer_seconds = self._now_seconds() - pulling.since_seconds
                pulling.held_tokens = min(offer.held_tokens, pulling.tokens)
                pulling.late_at_seconds = self._now_seconds() + self._rules.offer_limit_seconds

    def arrived(self, request_ids: Iterable[str]) -> None:
        """A messenger has all of its part of these requests' KV."""
        for request_id in request_ids:
            if (pulling := self._pulling.get(request_id)) is not None:
                pulling.arrivals += 1

    def loaded(self, request_id: str) -> None:
        """The request's fetch is over; what has not arrived is computed, and not asked for again."""
        if (pulling := self._pulling.get(request_id)) is not None:
            pulling.fetch_seconds = self._now_seconds() - pulling.since_seconds
            if not pulling.is_outdated:
                seconds = pulling.answer_seconds + pulling.fetch_seconds
                self._prices.pulled(pulling.source, pulling.fetched_tokens, seconds)
            self._forget(pulling, "arrived" if pulling.arrivals == self._messenger_count else pulling.fails_as)

    # ---- a request ends

    def gone(self, request_id: str, meta: StepMetadata) -> None:
        """The request has ended; one that fetches is over once its fetch is."""
        pulling = self._pulling.get(request_id)
        if pulling is None:
            return
        if pulling.state is _State.FETCHING:
            pulling.fails_as = "aborted"
        else:
            self._end(pulling, "aborted", meta)

    def _end(self, pulling: _Pulling, result: PullOutcome, meta: StepMetadata) -> None:
        """Nothing will be fetched: the engine that was asked need not hold its pages."""
        self._forget(pulling, result)
        if any(ask.request == pulling.ask for ask in meta.asks):
            meta.asks[:] = [ask for ask in meta.asks if ask.request != pulling.ask]
        else:
            meta.declines.append(Decline(*pulling.transfer, prefillers(pulling.source)))

    def _forget(self, pulling: _Pulling, result: PullOutcome) -> None:
        if result not in UNBOOKED and not pulling.is_outdated:
            self._book(pulling, pulled=result == "arrived")
        asked_seconds = min(self._now_seconds(), pulling.late_at_seconds) - pulling.since_seconds
        self._prices.ended_as(pulling.source, result, asked_seconds)
        if pulling.state is _State.FETCHING:
            own_seconds = self._prices.transfers.over(pulling.source, pulling.fetched_tokens, pulling.mark)
            fetched = pulling.fetched_tokens, pulling.fetch_seconds, own_seconds
            self._prices.fetched(pulling.source, *fetched, result)
        self._count(result, pulling.fetched_tokens, pulling.answer_seconds, pulling.fetch_seconds)
        self._by_ask.pop(pulling.ask, None)
        self._pulling.pop(pulling.request_id, None)

    def _book(self, pulling: _Pulling, *, pulled: bool) -> None:
        """Takes into account what the question has cost or saved."""
        if pulling.lacked_tokens < self._rules.tokens_min:
            return
        waited_seconds = self._waited_seconds(pulling) + pulling.fetch_seconds
        pulled_tokens = pulling.fetched_tokens if pulled else 0
        self._prices.ended(pulling.source, pulling.lacked_tokens, waited_seconds, pulled_tokens)

    def _waited_seconds(self, pulling: _Pulling) -> float:
        """For how long it would have run, but for the answer."""
        if pulling.state is not _State.ASKED or pulling.waits_since_seconds is None:
            return pulling.waited_seconds
        return self._now_seconds() - pulling.waits_since_seconds

    def _count(
        self, outcome: PullOutcome, tokens: int = 0, answer_seconds: float = 0.0, fetch_seconds: float = 0.0
    ) -> None:
        self.ended.append(PullEnded(outcome, tokens, round(answer_seconds * 1e6), round(fetch_seconds * 1e6)))

    def take_reports(self) -> list[PullEnded | Prices]:
        """What the messenger is to count and to show."""
        ended, self.ended = self.ended, []
        prices = self._reports.due()
        return [*ended] if prices is None else [*ended, prices]

    def is_empty(self) -> bool:
        """Whether no request is remembered; for leak checks at rest."""
        return not (self._pulling or self._by_ask)
