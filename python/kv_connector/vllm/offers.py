"""The source's side of pulls: what this engine's prefix cache holds of a prompt is offered to an engine that asks.

The question comes as a request of its own, a carrier, because the engine's core looks into its queue even while it is
idle or full. The carrier's blocks are looked up by the engine's own hashes and held by a reference. It is kept waiting
until its client, the messenger, leaves: nothing is computed for another engine. A block is in the prefix cache from
when the pass that fills it is scheduled, and on a GPU passes are queued ahead. So the messenger gets an offer only once
the outputs of all steps that were scheduled before its look-up have come. It holds no blocks for a conversation: an
offer ends by its fetch, or after a short limit.

Used by the engine core's thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.naming.cached_weights import CachedWeights
from kv_connector.runtime.commands import OfferReason
from kv_connector.vllm.held_prefix import HeldPrefix, held_prefix
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.metadata import Offer, PlacedBlocks, StepMetadata
from kv_connector.vllm.misfits import unfit_to_be_enqueued
from kv_connector.vllm.prompts import cut
from kv_connector.vllm.pull_params import Carrier
from kv_connector.vllm.pull_rules import PullRules
from kv_connector.vllm.request_numbers import RequestNumbers, shown

CARRIER_LIMIT_SECONDS = 2.0
"""The messenger leaves a carrier's HTTP request once it has its answer, and the engine's server aborts it then. If that
does not come, such as through a proxy that keeps the request, its one token is computed."""
NOTHING_HELD = HeldPrefix(0, [], [])


@dataclass(frozen=True, slots=True)
class _Waiting:
    offer: Offer
    after_step: int
    """The last step whose pass may still fill its blocks."""
    late_at_seconds: float
    """When it is given up, whatever has become of that step."""


class Offers:
    """The offers that the messenger has not released, and their blocks."""

    def __init__(
        self,
        groups: Sequence[KvGroup],
        rules: PullRules,
        numbers: RequestNumbers,
        digest_of: Callable[[Any], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._now_seconds = now_seconds
        self._rules = rules
        self._numbers = numbers
        self._digest_of = digest_of
        self._logger = logger
        self._pool: Any = None
        self.cached = CachedWeights()
        """Whether all that is in the prefix cache is of the weights that the digests name."""
        self.none_now = False
        """While the engine comes to rest, for which nothing may be held."""
        self._pinned: dict[str, list[Any]] = {}
        """The blocks of each offer, by number."""
        self._charged: dict[str, int] = {}
        """How many of them no request held."""
        self._step_in_flight = 0
        """The last step with a pass, and the last one whose output has come."""
        self._step_over = 0
        self._waiting: list[_Waiting] = []
        """Offers that the messenger has not got."""
        self._carriers: dict[str, float] = {}
        """The engine's ids of the carriers that it has queued, and until when they are kept from running."""

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._pool = block_pool

    def asked(self, request: Any, carrier: Carrier) -> None:
        """A carrier was queued: answers it, and leaves of it one token to compute, which is sent nowhere."""
        number = self._numbers.nameless()
        found = NOTHING_HELD
        try:
            reason: OfferReason = self._cannot_be_offered(request, carrier)
            if not reason:
                find, has_drafts = self._pool.get_cached_block, self._rules.has_drafts
                found = held_prefix(self._groups, request.block_hashes, find, has_drafts=has_drafts)
                reason = "" if self._has_room(found.tables) else "busy"
            if found.block_count and not reason:
                self._pin(number, [block for table in found.tables for block in table])
        except Exception:
            self._logger.exception("request %s of another engine is not answered", shown(request.request_id))
            reason = "unavailable"
        finally:
            cut_to_one_token(request)
        held = 0 if reason else found.block_count * self._groups[0].block_tokens
        placed = zip(found.firsts, found.tables, strict=True)
        groups = [PlacedBlocks(first, [int(block.block_id) for block in table]) for first, table in placed]
        reason = reason or ("" if held else "not_held")
        self._carriers[request.request_id] = self._now_seconds() + CARRIER_LIMIT_SECONDS
        offer = Offer(number, carrier.transfer, carrier.digest, held, groups if held else [], reason)
        late_at_seconds = self._now_seconds() + self._rules.offer_limit_seconds
        self._waiting.append(_Waiting(offer, self._step_in_flight if held else 0, late_at_seconds))

    def keeps_waiting(self, request_id: str) -> bool:
        """Whether the request is a carrier that is to be aborted soon, and not to be computed."""
        return self._now_seconds() < self._carriers.get(request_id, 0.0)

    def gone(self, request_id: str) -> None:
        """A request has ended, perhaps a carrier."""
        self._carriers.pop(request_id, None)

    def step_begins(self, meta: StepMetadata) -> None:
        """A step is scheduled; its metadata takes the offers whose blocks are full, and ends those that are late."""
        now_seconds, waiting = self._now_seconds(), self._waiting
        self._waiting = []
        for each in waiting:
            if each.after_step <= self._step_over:
                meta.offers.append(each.offer)
            elif now_seconds >= each.late_at_seconds:
                meta.offers.append(self._taken_back(each.offer, "busy"))
            else:
                self._waiting.append(each)
        if meta.computes:
            self._step_in_flight = meta.step
            meta.reports_end |= not self._rules.offers_none_because

    def step_over(self, step: int) -> None:
        """The output of a step has come: its pass, and all before it, have written their KV."""
        self._step_over = max(self._step_over, step)

    def _taken_back(self, offer: Offer, reason: OfferReason) -> Offer:
        """The answer that offers nothing, in place of one that the messenger has not got."""
        self.released([offer.request])
        return Offer(offer.request, offer.transfer, offer.prompt_digest, 0, [], reason)

    def _cannot_be_offered(self, request: Any, carrier: Carrier) -> OfferReason:
        """Why nothing of the prompt can be offered, whatever the cache holds; "" if something may be."""
        if self._rules.offers_none_because:
            return "unavailable"
        if self.none_now:
            return "busy"
        if unfit_to_be_enqueued(request) or self._digest_of(request) != carrier.digest or not self.cached.are_current:
            return "misfit"
        block_tokens, tokens = self._groups[0].block_tokens, int(request.num_prompt_tokens)
        if request.skip_reading_prefix_cache or not request.block_hashes:
            return "not_held"
        if len(request.block_hashes) != tokens // block_tokens:
            return "misfit"  # hashes of other lengths than the blocks
        return ""

    def _has_room(self, tables: Sequence[Sequence[Any]]) -> bool:
        """Whether what no request holds stays within the share of the pool that may be held for other engines."""
        free = sum(block.ref_cnt == 0 for table in tables for block in table)
        limit = int(self._rules.pages_share * len(self._pool.blocks))
        return bool(free + sum(self._charged.values()) <= limit)

    def _pin(self, number: str, blocks: list[Any]) -> None:
        charged = sum(block.ref_cnt == 0 for block in blocks)
        self._pool.touch(blocks)
        self._pinned[number], self._charged[number] = blocks, charged

    def released(self, numbers: Iterable[str]) -> None:
        """Nothing reads the pages of these offers any more; other numbers are ignored."""
        for number in numbers:
            self._charged.pop(number, None)
            if blocks := self._pinned.pop(number, None):
                self._pool.free_blocks(reversed(blocks))

    def withdraw(self, meta: StepMetadata) -> None:
        """What is offered is not to be fetched any more, unless that has begun: at once, or with the next step."""
        due = [*meta.offers, *(each.offer for each in self._waiting)]
        self._waiting.clear()
        meta.offers = [self._taken_back(offer, "not_held") if offer.held_tokens else offer for offer in due]
        meta.withdrawn = list(self._pinned)

    def has_work(self) -> bool:
        """Whether the engine must go on stepping: the messenger has yet to get or to release an offer."""
        return bool(self._pinned or self._waiting)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._pinned or self._charged or self._waiting or self._carriers)


def cut_to_one_token(request: Any) -> None:
    """Leaves one token of a carrier, which is computed only if its client stays; no other engine waits for that."""
    request.kv_transfer_params = None
    request.block_hashes = []
    cut(request, 1)
