"""Proves a pair of engines by a prompt that both compute, where a wrong answer could not be stopped.

The decoder computes the prompt itself, so its answer is right in any case, and the prefiller's KV of the same prompt is
fetched into scratch blocks: blocks of the engine's own pool that no request has. When both are there, the workers
compare some tokens. Scratch blocks go back to the pool when nothing can write to them and no comparison reads them.

Once the prompt is computed, the blocks of the compared tokens are held by a reference of their own, so that what
becomes of the request no longer matters. Used by the engine core's thread only. ``PairProofs`` decides which requests
are shadowed and what a verdict means; this class knows where the KV lies and when it is complete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.naming.pair_rules import PROBE_TOKENS_MIN
from kv_connector.vllm.absent_media import end_of_absent
from kv_connector.vllm.kv_groups import NULL_BLOCK, KvGroup, has_state, transferred_blocks, transferred_tokens
from kv_connector.vllm.misfits import unfit_to_be_enqueued
from kv_connector.vllm.pair_proofs import Judged, PairProofs, Way
from kv_connector.vllm.proof_messages import ComparedToken, Place, Proved, ShadowProof
from kv_connector.vllm.request_numbers import shown
from kv_connector.vllm.transfer_params import Receive

SPREAD_PARTS = 7
"""Of the compared tokens, one lies between any two of these parts of the prompt."""
LAST_TOKENS = 3
"""How many of them are the last ones, which every window has."""
VERDICT_LIMIT_SECONDS = 60.0
"""After this time without a word of the workers a comparison counts as not made; a step takes far less."""


@dataclass(slots=True)
class _Shadow:
    request_id: str
    judged: Judged
    transferred_tokens: int
    scratch: Sequence[Sequence[int]]
    """Its blocks in each group, those that ``KvGroup.needed`` names."""
    tables: list[list[int]] = field(default_factory=list)
    """The request's own blocks, as allocated; empty before its first pass."""
    computed_from: int = 0
    """The first token that this engine computes for the request; those before it were in the prefix cache."""
    compared: Sequence[ComparedToken] = ()
    """What is compared, once the prompt is computed here."""
    kept: Sequence[Any] = ()
    """The pool's blocks that hold those tokens."""
    arrivals: int = 0
    failures: int = 0
    """The numbers of messengers that have, and will not have, all of their part."""
    writable: int = 0
    """The number of messengers that failed while a peer may still write to the scratch blocks."""
    asked_at_seconds: float | None = None
    """When the workers were asked to compare."""
    over: bool = False
    """Whether its pair knows what came of it."""


class ShadowFetches:
    """The shadow fetches that are under way, and their blocks."""

    def __init__(
        self,
        groups: Sequence[KvGroup],
        proofs: PairProofs,
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups = groups
        self._proofs = proofs
        self._logger = logger
        self._now_seconds = now_seconds
        self._pool: Any = None
        self._messenger_count = 0
        self._shadows: dict[str, _Shadow] = {}
        """By number."""
        self._computing: dict[str, str] = {}
        """The numbers of those whose prompt is not computed yet, by the engine's request."""
        self._to_abandon: list[str] = []

    def begin(self, messenger_count: int) -> None:
        """Sets how many messengers report each fetch."""
        self._messenger_count = messenger_count

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool; called before any request."""
        self._pool = block_pool

    # ---- a request comes

    def way(self, request: Any, ask: Receive) -> Way:
        """``PairProofs.way``, for a request that a prefiller could be asked for."""
        if ask.decoder_first and (has_state(self._groups) or unfit_to_be_enqueued(request)):
            return Way.FETCH  # and is refused then, with the reason
        way = self._proofs.way(request, ask, lambda: self._has_room(request))
        is_here = way in (Way.HERE, Way.SHADOW)
        return Way.FETCH if is_here and end_of_absent(request) else way  # it cannot be computed here

    def may_pull(self, request: Any, ask: Receive) -> bool:
        """Whether the beginning of its prompt may be fetched: wrong KV of an unproven pair would not be seen."""
        return self._proofs.way_of_pull(request, ask.messengers, lambda: False) is Way.FETCH

    def _has_room(self, request: Any, tokens: int | None = None) -> bool:
        """Whether the pool has the scratch blocks, and as many again, which the request itself may need."""
        needed = transferred_blocks(self._groups, 0, self._transferred(request) if tokens is None else tokens)
        return bool(2 * needed <= self._pool.get_num_free_blocks())

    def _transferred(self, request: Any) -> int:
        return transferred_tokens(self._groups, int(request.num_prompt_tokens))

    def start(self, request: Any, ask: Receive, number: str) -> tuple[Messengers, Sequence[Sequence[int]]] | None:
        """(the prefiller to fetch from, the blocks to fill in each group), if the request is to be shadowed."""
        if request.request_id in self._computing or self.way(request, ask) is not Way.SHADOW:
            return None
        judged, messengers = self._proofs.shadowed(request, ask, number)
        return messengers, self._begin(request, judged, self._transferred(request), messengers, number)

    def start_pull(self, request: Any, ask: Receive, tokens: int, number: str) -> Sequence[Sequence[int]] | None:
        """As ``start``, for the first ``tokens`` of a prompt: the blocks to fill in each group."""
        if request.request_id in self._computing or tokens < PROBE_TOKENS_MIN:
            return None
        if self._proofs.way_of_pull(request, ask.messengers, lambda: self._has_room(request, tokens)) is not Way.SHADOW:
            return None
        judged, messengers = self._proofs.shadowed(request, ask, number)
        judged = replace(judged, prompt_tokens=tokens, transferred_tokens=tokens)
        return self._begin(request, judged, tokens, messengers, number)

    def _begin(
        self, request: Any, judged: Judged, tokens: int, messengers: Messengers, number: str
    ) -> Sequence[Sequence[int]]:
        needed = [group.needed(0, tokens) for group in self._groups]
        counts = [each.stop - each.start for each in needed]
        try:
            taken = [int(block.block_id) for block in self._pool.get_new_blocks(sum(counts))]
        except Exception:
            self._proofs.shadow_dropped(number, judged)
            raise
        starts = [sum(counts[:index]) for index in range(len(counts))]
        scratch = [taken[start : start + count] for start, count in zip(starts, counts, strict=True)]
        self._shadows[number] = _Shadow(request.request_id, judged, tokens, scratch)
        self._computing[request.request_id] = number
        self._logger.info(
            "request %s is computed here and its KV is fetched besides as number %s, to compare both: it is not known"
            " yet whether the engine at %s computes the same as this one",
            *(shown(request.request_id), number, messengers[0]),
        )
        return scratch

    # ---- a step

    def scheduled(
        self, request_id: str, group_blocks: Sequence[Sequence[int]], whole_table: bool, first_token: int, count: int
    ) -> None:
        """The step computes ``count`` tokens of a request. Raises nothing: the request is not compared then."""
        number = self._computing.get(request_id)
        if number is None:
            return
        shadow = self._shadows[number]
        try:
            if whole_table:
                shadow.tables, shadow.computed_from = [list(blocks) for blocks in group_blocks], first_token
            else:
                for table, blocks in zip(shadow.tables, group_blocks, strict=False):  # empty if none was allocated
                    table.extend(blocks)
            if first_token + count >= shadow.judged.prompt_tokens:
                del self._computing[request_id]
                self._choose(number, shadow)
        except Exception:
            self._logger.exception("shadow fetch %s is not compared", number)
            self._not_judged(number, shadow)

    def _choose(self, number: str, shadow: _Shadow) -> None:
        """The prompt is computed by this step's pass: chooses what is compared, and keeps the blocks that hold it."""
        tokens = compared_tokens(shadow.computed_from, shadow.transferred_tokens)
        if not tokens:  # all of the beginning was in this engine's cache: that is no failure of the pair
            self._drop(number, shadow)
            return
        compared = [self._places(shadow, token) for token in tokens]
        shadow.compared = [each for each in compared if any(each.own)]
        if not shadow.compared:
            self._not_judged(number, shadow)
            return
        kept = {place[0] for each in shadow.compared for place in each.own if place is not None}
        blocks = [self._pool.blocks[block] for block in sorted(kept)]
        self._pool.touch(blocks)
        shadow.kept = blocks

    def _places(self, shadow: _Shadow, token: int) -> ComparedToken:
        own: list[Place | None] = []
        received: list[Place | None] = []
        alike_around = True
        for group, table, scratch in zip(self._groups, shadow.tables, shadow.scratch, strict=True):
            first_needed = group.first_needed(0, shadow.transferred_tokens)
            index, offset = divmod(token, group.block_tokens)
            if group.state or token < first_needed or table[index] == NULL_BLOCK:
                own.append(None)
                received.append(None)
                continue
            own.append((table[index], offset))
            received.append((scratch[index - first_needed // group.block_tokens], offset))
            start, end = index * group.block_tokens, (index + 1) * group.block_tokens
            alike_around &= max(shadow.computed_from, first_needed) <= start and end <= shadow.transferred_tokens
        return ComparedToken(own, received, alike_around)

    def due(self) -> list[ShadowProof]:
        """What the workers are to compare after this step's pass."""
        proofs = []
        for number, shadow in list(self._shadows.items()):
            if shadow.asked_at_seconds is not None:
                if not shadow.over and self._now_seconds() - shadow.asked_at_seconds >= VERDICT_LIMIT_SECONDS:
                    self._not_judged(number, shadow)
            elif not shadow.over and shadow.compared and shadow.arrivals == self._messenger_count:
                shadow.asked_at_seconds = self._now_seconds()
                proofs.append(ShadowProof(number, shadow.compared))
        return proofs

    def take_abandoned(self) -> list[str]:
        """Fetches that are not needed any more."""
        abandoned, self._to_abandon = self._to_abandon, []
        return abandoned

    # ---- what the workers report

    def may_be_written(self, number: str) -> bool:
        """A messenger failed the fetch while a peer may still write to its blocks; False if it is no shadow fetch."""
        if (shadow := self._shadows.get(number)) is None:
            return False
        shadow.writable += 1
        return True

    def let_go(self, number: str) -> bool:
        """That messenger has proof now that nothing can write to them; False if it is no shadow fetch."""
        if (shadow := self._shadows.get(number)) is None:
            return False
        shadow.writable -= 1
        self._release(number, shadow)
        return True

    def reported(self, arrived: Iterable[str], failed: Iterable[str], proved: Iterable[Proved]) -> list[str]:
        """Takes the reports of a step; returns the fetches that all messengers have ended."""
        touched: dict[str, _Shadow] = {}
        for number in arrived:
            if (shadow := self._shadows.get(number)) is not None:
                shadow.arrivals += 1
                touched[number] = shadow
        for number in failed:
            if (shadow := self._shadows.get(number)) is not None:
                shadow.failures += 1
                touched[number] = shadow
        for number, shadow in touched.items():
            if shadow.failures:
                self._not_judged(number, shadow)
        by_number: dict[str, list[Proved]] = {}
        for each in proved:
            by_number.setdefault(each.request, []).append(each)
        for number, ranks in by_number.items():
            if (shadow := self._shadows.get(number)) is not None and not shadow.over:
                shadow.over = True
                self._proofs.shadow_judged(number, shadow.judged, ranks)
                touched[number] = shadow
        for number, shadow in touched.items():
            self._release(number, shadow)
        return [number for number, shadow in touched.items() if self._is_ended(shadow)]

    # ---- a request ends

    def gone(self, request_id: str) -> None:
        """The request ended or lost its blocks; if it was not computed yet, nothing is compared."""
        number = self._computing.get(request_id)
        if number is not None:
            self._drop(number, self._shadows[number])

    def aborted(self, request_id: str) -> None:
        """Its client left, and so perhaps its prefill: KV that is not here by now may never come."""
        for number, shadow in list(self._shadows.items()):
            if shadow.request_id == request_id and not shadow.over and shadow.arrivals < self._messenger_count:
                self._drop(number, shadow)

    def drop(self, number: str) -> None:
        """The fetch was never asked for, after an error on this side."""
        if (shadow := self._shadows.get(number)) is not None:
            shadow.failures = self._messenger_count
            self._drop(number, shadow)

    def drop_uncomputed(self) -> None:
        """The engine gives up what it has computed: prompts that are not computed yet are not compared."""
        for number in list(self._computing.values()):
            self._drop(number, self._shadows[number])

    def has_work(self) -> bool:
        """Whether the engine must go on stepping: quarantined blocks wait for other steps.

        So does KV that came before its prompt is computed here. An engine that is paused computes no prompt, and would
        never come to rest.
        """
        waiting = (not self._is_ended(each) or (each.compared and not each.over) for each in self._shadows.values())
        return bool(self._to_abandon) or any(waiting)

    def is_empty(self) -> bool:
        """Whether nothing is remembered; for leak checks at rest."""
        return not (self._shadows or self._computing or self._to_abandon)

    # ---- inside

    def _is_ended(self, shadow: _Shadow) -> bool:
        return shadow.arrivals + shadow.failures >= self._messenger_count

    def _not_judged(self, number: str, shadow: _Shadow) -> None:
        """It came to nothing, and not because of its request."""
        if not shadow.over:
            self._proofs.shadow_judged(number, shadow.judged, [Proved(number, judged=False)])
            self._end(number, shadow)

    def _drop(self, number: str, shadow: _Shadow) -> None:
        self._proofs.shadow_dropped(number, shadow.judged)
        self._end(number, shadow)

    def _end(self, number: str, shadow: _Shadow) -> None:
        shadow.over = True
        if self._computing.get(shadow.request_id) == number:  # not a later request of that id
            del self._computing[shadow.request_id]
        if not self._is_ended(shadow):
            self._to_abandon.append(number)
        self._release(number, shadow)

    def _release(self, number: str, shadow: _Shadow) -> None:
        """Gives back what nothing reads or writes any more."""
        if shadow.over and shadow.kept:
            kept, shadow.kept = shadow.kept, ()
            self._pool.free_blocks(reversed(kept))
        is_safe = shadow.over and self._is_ended(shadow) and not shadow.writable
        if is_safe and self._shadows.pop(number, None) is not None:
            scratch = [self._pool.blocks[block] for blocks in shadow.scratch for block in blocks]
            self._pool.free_blocks(reversed(scratch))


def compared_tokens(first_token: int, end_token: int) -> list[int]:
    """Some of the tokens ``[first_token, end_token)``: evenly spread, and the last ones; in order. Pure."""
    count = end_token - first_token
    spread = (first_token + part * count // SPREAD_PARTS for part in range(1, SPREAD_PARTS))
    last = (end_token - 1 - back for back in range(LAST_TOKENS))
    return sorted({token for token in (*spread, *last) if first_token <= token < end_token})


def held_as(number: str) -> tuple[str, str]:
    """What the gate knows a shadow fetch as: no request has such an id."""
    return "shadow", number
