"""Decides, for each pair of this engine and a prefiller, whether both compute the same KV.

No list of settings is complete, so the pair is proven: each transfer brings the KV of the last prompt token, which this
engine computes again, and the workers compare the two (``LastTokenProof``). A pair is unproven until one request of
``PROBE_TOKENS_MIN`` tokens was compared. Others of the pair wait until then, for a limited time. A refuted pair's
fetches are refused before their pass. A messenger that restarted, changed weights or another adapter make another pair,
or the pair unproven again.

Where that one request could not be stopped, or no token is common to both sides because the model has state, it is
computed here instead, and its KV is fetched besides for the comparison: a shadow fetch (``ShadowFetches``).

Used by the engine core's thread only. It reads no KV, and does not know what a difference means.
"""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kv_connector.configuration.messenger_addresses import Messengers
from kv_connector.naming.pair_rules import (
    DIFFERENT_MAX,
    JUDGED_KEPT,
    PROBE_TOKENS_MIN,
    REFUTED_SECONDS,
    UNJUDGED_MAX,
    Check,
    PairState,
    record_of,
)
from kv_connector.vllm.kv_groups import KvGroup, has_state
from kv_connector.vllm.prefiller_processes import PrefillerProcesses
from kv_connector.vllm.proof_messages import Proof, ProofTally, Proved
from kv_connector.vllm.transfer_params import Receive, Refused

PROBE_LIMIT_SECONDS = 10.0
"""How long the others of an unproven pair wait for those that go first; their prompts may be long, or never come."""
SHADOW_TOKENS_MAX = 8192
"""Longer prompts of an unproven pair are not computed here only to prove it: that is the prefiller's work."""


class Way(enum.Enum):
    """Where a request gets the KV of its prompt."""

    FETCH = "fetched"
    WAIT = "not known yet"
    HERE = "computed here"
    SHADOW = "computed here, and fetched besides to compare both"


@dataclass(frozen=True, slots=True)
class Pair:
    """The prefiller, and with what both sides compute."""

    messengers: Messengers
    weights: str
    adapter: str


@dataclass(slots=True)
class _Record:
    state: PairState = PairState.UNPROVEN
    finding: str = ""
    refuted_at_seconds: float = 0.0
    epoch: int = 0
    """Counts how often the pair became unproven again; verdicts of earlier epochs do not count."""
    probe: str = ""
    """The request for whose verdict the others wait; "" if none."""
    probe_since_seconds: float = 0.0
    unjudged: int = 0
    unjudged_at_seconds: float = 0.0
    different: deque[bool] = field(default_factory=lambda: deque(maxlen=JUDGED_KEPT))


@dataclass(slots=True)
class Judged:
    """A request of which one token or several will be compared."""

    pair: Pair
    epoch: int
    prompt_tokens: int
    transferred_tokens: int
    first_token: int
    blocks: Sequence[int]
    arrivals: int = 0
    """The number of messengers that have all of their part."""


class PairProofs:
    """The states of all pairs, and the requests whose comparison is due."""

    def __init__(
        self,
        groups: Sequence[KvGroup],
        check: Check,
        *,
        can_stop: bool,
        weights: Callable[[], str],
        adapter_of: Callable[[Any], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """``can_stop``: whether the engine can end a running request whose loaded KV is wrong."""
        self._groups = groups
        self._check = check
        self._can_stop = can_stop
        self._last_is_common = not has_state(groups)
        """Whether both sides compute the last token."""
        self._shadows_possible = False
        self._weights = weights
        self._adapter_of = adapter_of
        self._logger = logger
        self._now_seconds = now_seconds
        self._messenger_count = 0
        self._records: dict[Pair, _Record] = {}
        self._processes = PrefillerProcesses()
        self._held_back: dict[str, float] = {}
        """When each request that waits was first held back: one after the other may go first and end unjudged."""
        self._fetched: dict[str, Judged] = {}
        self._judging: dict[str, Judged] = {}
        """Requests whose comparison runs."""
        self._evict: Callable[[set[int]], None] | None = None
        self._tallies: list[ProofTally] = []

    # ---- start

    def begin(self, messengers_that_compare: Sequence[bool]) -> None:
        """Sets which messengers' ranks can compare rows; nothing waits or is compared unless all can."""
        self._messenger_count = len(messengers_that_compare) if all(messengers_that_compare) else 0

    def bind(self, block_pool: Any) -> None:
        """Sets the engine's block pool, from whose prefix cache wrong KV is removed."""
        self._evict = getattr(block_pool, "evict_blocks", None)
        self._shadows_possible = hasattr(block_pool, "get_new_blocks")

    @property
    def _compares(self) -> bool:
        return self._check != "off" and self._messenger_count > 0

    @property
    def _active(self) -> bool:
        return self._last_is_common and self._compares

    @property
    def _decides(self) -> bool:
        return self._check == "fail" and (self._active or self.by_shadows)

    @property
    def by_shadows(self) -> bool:
        """Whether an unproven pair is proven by shadow fetches."""
        needed = self._check == "fail" and not (self._last_is_common and self._can_stop)
        return needed and self._compares and self._shadows_possible

    # ---- before a fetch

    def way(self, request: Any, ask: Receive, has_room: Callable[[], bool]) -> Way:
        """Where the request gets its KV; it may be asked any number of times, and changes no pair.

        ``has_room``: whether a shadow fetch of the prompt finds blocks; without them an unproven pair's KV is used.
        """
        if not self.by_shadows:
            return Way.WAIT if self.holds_back(request, ask) else Way.FETCH
        record = self._records.get(self._pair(request, self._first_left(request, ask))) or _Record()
        tokens, now_seconds = int(request.num_prompt_tokens), self._now_seconds()
        here = Way.HERE if tokens <= SHADOW_TOKENS_MAX else Way.FETCH
        probes = PROBE_TOKENS_MIN <= tokens <= SHADOW_TOKENS_MAX
        if record.state is PairState.REFUTED:
            due = now_seconds - record.refuted_at_seconds >= REFUTED_SECONDS
            return Way.SHADOW if due and probes and has_room() else Way.FETCH  # and is refused then
        given_up = record.unjudged >= UNJUDGED_MAX and now_seconds - record.unjudged_at_seconds < REFUTED_SECONDS
        if record.state is PairState.PROVEN or given_up:
            return Way.FETCH
        if record.probe:
            return Way.WAIT if self._waits_for(record, request) else here
        if probes:
            return Way.SHADOW if has_room() else Way.FETCH
        return here

    def way_of_pull(self, request: Any, messengers: Messengers, has_room: Callable[[], bool]) -> Way:
        """As ``way``, for a prompt's beginning: no token of it is common, so only a shadow proves it."""
        record = self._records.get(self._pair(request, messengers)) or _Record()
        checked = self._check == "fail" and self._compares and self._shadows_possible
        if not checked or record.state is PairState.PROVEN:
            return Way.FETCH
        tried_at_seconds = max(record.refuted_at_seconds, record.unjudged_at_seconds)
        given_up = record.state is PairState.REFUTED or record.unjudged >= UNJUDGED_MAX
        due = not given_up or self._now_seconds() - tried_at_seconds >= REFUTED_SECONDS
        return Way.SHADOW if due and not record.probe and has_room() else Way.HERE

    def _first_left(self, request: Any, ask: Receive) -> Messengers:
        """The first prefiller that is not refuted; the first one if all are."""
        return next(iter(self._left(request, ask)), ask.messengers)

    def _left(self, request: Any, ask: Receive) -> list[Messengers]:
        """The prefillers that are not refuted."""
        named = (ask.messengers, *ask.other_prefillers)
        return [each for each in named if not self._finding(self._pair(request, each))]

    def shadowed(self, request: Any, ask: Receive, number: str) -> tuple[Judged, Messengers]:
        """The request is computed here, and fetched besides under this number; others of the pair wait for it.

        Returns what ``shadow_judged`` takes, and the prefiller to fetch from.
        """
        self._held_back.pop(request.request_id, None)
        messengers = self._first_left(request, ask)
        pair = self._pair(request, messengers)
        record = self._record(pair)
        if record.state is PairState.REFUTED:
            self._start_anew(record)
        record.probe, record.probe_since_seconds = _probe_of_shadow(number), self._now_seconds()
        tokens = int(request.num_prompt_tokens)
        return Judged(pair, record.epoch, tokens, tokens, 0, ()), messengers

    def shadow_judged(self, number: str, judged: Judged, ranks: Sequence[Proved]) -> None:
        """What all ranks found."""
        self._conclude(_probe_of_shadow(number), judged, ranks, answered=False)

    def shadow_dropped(self, number: str, judged: Judged) -> None:
        """The request ended before it was computed: another one goes first."""
        self._end_probe(judged.pair, _probe_of_shadow(number))

    def holds_back(self, request: Any, ask: Receive) -> bool:
        """Whether the request waits for the verdict about another one of its pair; it may be asked any number of times.

        It waits no longer than for one of them, however many go first: its time runs from the first such answer.
        """
        record = self._records.get(self._pair(request, ask.messengers)) if self._decides else None
        if record is None or record.state is not PairState.UNPROVEN or record.probe in ("", request.request_id):
            return False
        return self._waits_for(record, request)

    def _waits_for(self, record: _Record, request: Any) -> bool:
        now_seconds = self._now_seconds()
        since_seconds = self._held_back.setdefault(request.request_id, now_seconds)
        return now_seconds - min(since_seconds, record.probe_since_seconds) < PROBE_LIMIT_SECONDS

    def chosen(self, request: Any, ask: Receive) -> Receive | Refused:
        """The ask without prefillers that are refuted; Refused if none is left."""
        if not self._decides:
            return ask
        left = self._left(request, ask)
        if left:
            return replace(ask, messengers=left[0], other_prefillers=tuple(left[1:]))
        self._tally("refused", 0.0, ask.messengers)
        finding = self._finding(self._pair(request, ask.messengers))
        return Refused(
            f"the prefiller at {ask.messengers[0]} and this engine compute different KV: {finding}; correct one side"
            "'s settings, or set last_token_check to 'warn' to use its KV all the same"
        )

    def fetching(
        self, request: Any, ask: Receive, transferred_tokens: int, first_token: int, blocks: Sequence[int]
    ) -> None:
        """The request's KV is being fetched into these blocks."""
        self._held_back.pop(request.request_id, None)
        if not self._active:
            return
        pair = self._pair(request, ask.messengers)
        record = self._record(pair)
        tokens = int(request.num_prompt_tokens)
        self._fetched[request.request_id] = Judged(pair, record.epoch, tokens, transferred_tokens, first_token, blocks)
        waiting = record.state is PairState.UNPROVEN and record.unjudged < UNJUDGED_MAX
        if waiting and tokens >= PROBE_TOKENS_MIN and not record.probe:  # one that is late makes none wait any more
            record.probe, record.probe_since_seconds = request.request_id, self._now_seconds()

    def gone(self, request_id: str) -> None:
        """The request ended before it was scheduled, or is not compared. A comparison that runs still counts."""
        self._held_back.pop(request_id, None)
        if (fetched := self._fetched.pop(request_id, None)) is not None:
            self._end_probe(fetched.pair, request_id)

    # ---- a step

    def planned(
        self, request_id: str, tables: Sequence[Sequence[int]], computed_tokens: int, scheduled_tokens: int
    ) -> list[Proof]:
        """As ``plan``, as a list of at most one; never raises, because a step without proofs is better than none."""
        try:
            proof = self.plan(request_id, tables, computed_tokens, scheduled_tokens)
        except Exception:
            self._logger.exception("the last token of request %s is not compared", request_id)
            self.gone(request_id)
            return []
        return [proof] if proof is not None else []

    def plan(
        self, request_id: str, tables: Sequence[Sequence[int]], computed_tokens: int, scheduled_tokens: int
    ) -> Proof | None:
        """The comparison for a request that is scheduled; None if it has none, or if its last token is not computed.

        ``tables`` are its whole block tables.
        """
        fetched = self._fetched.get(request_id)
        if fetched is None:
            return None
        last = fetched.prompt_tokens - 1
        fits = (
            fetched.arrivals == self._messenger_count
            and fetched.transferred_tokens == fetched.prompt_tokens
            and fetched.first_token <= computed_tokens <= last < computed_tokens + scheduled_tokens
            and all(last // group.block_tokens < len(table) for group, table in zip(self._groups, tables, strict=True))
        )
        if not fits:
            self.gone(request_id)
            return None
        self._judging[request_id] = self._fetched.pop(request_id)
        places = [
            (table[last // group.block_tokens], last % group.block_tokens)
            for group, table in zip(self._groups, tables, strict=True)
        ]
        return Proof(
            request_id,
            places,
            list(fetched.blocks),
            alone=computed_tokens + scheduled_tokens == fetched.prompt_tokens,
            may_fail=self._decides and self._can_stop,
        )

    def reported(
        self,
        *,
        connected: Mapping[str, str],
        moved: Mapping[str, Messengers],
        arrived: Iterable[str],
        proved: Iterable[Proved],
    ) -> None:
        """Takes what the workers have seen in a step; the parameters are those of ``WorkerNews``."""
        for address in self._processes.reported(connected):  # which may compute something else
            for pair, record in self._records.items():
                if any(str(each) == address for each in pair.messengers):
                    self._start_anew(record)
        for request_id, messengers in moved.items():
            if (fetched := self._fetched.get(request_id)) is not None:
                self._move(request_id, fetched, replace(fetched.pair, messengers=messengers))
        for request_id in arrived:
            if (fetched := self._fetched.get(request_id)) is not None:
                fetched.arrivals += 1
        by_request: dict[str, list[Proved]] = {}
        for each in proved:
            by_request.setdefault(each.request, []).append(each)
        for request_id, ranks in by_request.items():
            if (judged := self._judging.pop(request_id, None)) is not None:
                self._conclude(request_id, judged, ranks)

    def renamed(self, request: Any) -> None:
        """This engine has other weights, or another adapter, and fetches the KV that these compute."""
        if (fetched := self._fetched.get(request.request_id)) is not None:
            self._move(request.request_id, fetched, self._pair(request, fetched.pair.messengers))

    def _move(self, request_id: str, fetched: Judged, pair: Pair) -> None:
        self._end_probe(fetched.pair, request_id)
        fetched.pair, fetched.epoch = pair, self._record(pair).epoch

    def take_tallies(self) -> list[ProofTally]:
        """What is to be counted since the last call."""
        tallies, self._tallies = self._tallies, []
        return tallies

    def state_of(self, request: Any, messengers: Messengers) -> PairState:
        """What is known of the request's pair."""
        return (self._records.get(self._pair(request, messengers)) or _Record()).state

    def wants_shared_token(self, request: Any, ask: Receive) -> bool:
        """Whether a fetched beginning should leave its last token to both sides: it may come from an unproven pair."""
        left = self._left(request, ask)
        return self._active and not (left and all(self._stays_proven(request, each) for each in left))

    def _stays_proven(self, request: Any, messengers: Messengers) -> bool:
        """Whether the pair is proven, and a fetch finds the processes with which it is."""
        proven = self.state_of(request, messengers) is PairState.PROVEN
        return proven and not self._processes.may_be_others(messengers)

    def is_empty(self) -> bool:
        """Whether no request is remembered; for leak checks at rest."""
        return not (self._held_back or self._fetched or self._judging)

    # ---- inside

    def _pair(self, request: Any, messengers: Messengers) -> Pair:
        lora = getattr(request, "lora_request", None)
        return Pair(messengers, self._weights(), self._adapter_of(lora) if lora is not None else "")

    def _record(self, pair: Pair) -> _Record:
        return record_of(self._records, pair, _Record)

    def _finding(self, pair: Pair) -> str:
        """Why the pair is refuted; "" if it is not, or if it is time to compare another request."""
        record = self._records.get(pair)
        if record is None or record.state is not PairState.REFUTED:
            return ""
        is_due = self._now_seconds() - record.refuted_at_seconds >= REFUTED_SECONDS
        if is_due and self._can_stop and not self.by_shadows:
            self._start_anew(record)
            return ""
        return record.finding

    @staticmethod
    def _start_anew(record: _Record) -> None:
        record.state, record.finding, record.probe, record.unjudged = PairState.UNPROVEN, "", "", 0
        record.epoch += 1
        record.different.clear()

    def _end_probe(self, pair: Pair, request_id: str) -> None:
        record = self._records.get(pair)
        if record is not None and record.probe == request_id:
            record.probe = ""

    def _conclude(self, request_id: str, judged: Judged, ranks: Sequence[Proved], *, answered: bool = True) -> None:
        """``answered``: whether the request continues from the KV that was compared."""
        self._end_probe(judged.pair, request_id)
        record = self._record(judged.pair)
        finding = next((rank.finding for rank in ranks if rank.finding), "")
        worst = max((rank.worst for rank in ranks), default=0.0)
        where = judged.pair.messengers
        if finding:
            self._tally("different", worst, where)
            if answered:
                self._on_different(request_id, judged, finding)
        elif all(rank.judged for rank in ranks):
            self._tally("equal", worst, where)
        else:
            self._tally("unjudged", worst, where)
        if record.epoch != judged.epoch or record.state is PairState.REFUTED:
            return
        if not finding and not all(rank.judged for rank in ranks):
            record.unjudged += 1
            record.unjudged_at_seconds = self._now_seconds()
            return
        record.unjudged = 0
        record.different.append(bool(finding))
        if finding and (record.state is PairState.UNPROVEN or sum(record.different) > DIFFERENT_MAX):
            self._refute(record, judged.pair, finding)
        elif not finding and judged.prompt_tokens >= PROBE_TOKENS_MIN:
            record.state = PairState.PROVEN

    def _refute(self, record: _Record, pair: Pair, finding: str) -> None:
        record.state, record.finding, record.refuted_at_seconds = PairState.REFUTED, finding, self._now_seconds()
        if self._check == "fail":
            self._logger.error(
                "the prefiller at %s and this engine compute different KV, its fetches are refused from now on: %s",
                *(pair.messengers[0], finding),
            )
        else:
            self._logger.warning(
                "the prefiller at %s and this engine compute different KV, which is used because last_token_check is"
                " 'warn': %s",
                *(pair.messengers[0], finding),
            )

    def _on_different(self, request_id: str, judged: Judged, finding: str) -> None:
        if self._check != "fail":
            return
        if self._evict is not None:
            self._evict(set(judged.blocks))  # no other request may take wrong KV from the prefix cache
        outcome = "it fails" if self._can_stop else "it cannot be stopped and goes on with wrong KV"
        self._logger.error(
            "the KV of request %s is not what this engine computes, %s: %s", request_id, outcome, finding
        )

    def _tally(
        self, outcome: Literal["equal", "different", "unjudged", "refused"], worst: float, where: Messengers
    ) -> None:
        self._tallies.append(ProofTally(outcome, worst, where[0]))


def _probe_of_shadow(number: str) -> str:
    return f"shadow fetch {number}"
