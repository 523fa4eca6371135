"""Decides, for each pair of this rank and a prefiller, whether both compute the same KV. Pure.

SGLang's decoder computes no token that its prefiller computed. So it computes the beginning of one received prompt of
each pair again (``own_pass.py``), and what was received is compared with that. A pair is unproven until one prompt of
``PROBE_TOKENS_MIN`` tokens was compared; it is a prefiller's messengers, the weights and the adapter. A refuted pair's
fetches are refused before they begin. A restarted messenger makes its pairs unproven again.

Used by the scheduler's thread only. Ranks may differ for a moment in what they know; ``pair_check.py`` lets them agree.
"""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

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
from kv_connector.runtime.commands import ComparisonOutcome, PrefillerAddress


class Wanted(enum.IntEnum):
    """What is to be done with a prompt that has arrived; ranks agree on the highest."""

    NOTHING = 0
    COMPARE = 1
    REFUSE = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """The prefiller, and with what both sides compute."""

    prefillers: tuple[PrefillerAddress, ...]
    weights: str
    adapter: str


@dataclass(slots=True, eq=False)
class Arrival:
    """A request's KV on its way to this rank; the receiver and SGLang's request share it."""

    adapter: str = ""
    pair: Pair | None = None
    """Set when the fetch begins."""
    sessions: int = -1
    """How many sessions with messengers had been opened when the KV was complete; -1 = it is not."""
    kept_from_cache: bool = False
    """Whether SGLang caches nothing of the request until its batch is checked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison of one prompt came to, on all ranks of this engine."""

    judged: bool
    worst: float = 0.0
    """This rank's largest difference in any layer, as a part of that layer's largest number."""
    finding: str = ""
    """What differs by more than rounding explains; "" if nothing does."""

    @property
    def outcome(self) -> ComparisonOutcome:
        """As it is counted."""
        return "different" if self.finding else "equal" if self.judged else "unjudged"


@dataclass(slots=True)
class _Record:
    state: PairState = PairState.UNPROVEN
    finding: str = ""
    since_seconds: float = 0.0
    """When the pair was refuted, or when comparisons were paused."""
    since_sessions: int = 0
    """Prompts that arrived in earlier sessions prove nothing about this one's process."""
    unjudged: int = 0
    different: deque[bool] = field(default_factory=lambda: deque(maxlen=JUDGED_KEPT))


class PairStates:
    """The states of all pairs of one rank."""

    compares_all: ClassVar[bool] = False
    """Whether prompts of proven pairs are compared too, which costs a pass for each; for tests."""

    def __init__(
        self,
        check: Check,
        *,
        weights: Callable[[], str],
        logger: logging.Logger,
        now_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.check: Check = check
        self._weights = weights
        self._logger = logger
        self._now_seconds = now_seconds
        self._records: dict[Pair, _Record] = {}
        self._incarnations: dict[PrefillerAddress, str] = {}
        """As last connected."""

    def hosts(self) -> list[str]:
        """Where messengers listen with which there has been a session; for any thread."""
        return [address.host for address in list(self._incarnations)]

    # ---- a fetch

    def fetching(self, arrival: Arrival, prefillers: tuple[PrefillerAddress, ...]) -> str:
        """A fetch is about to begin; returns why it must not, "" if it may."""
        arrival.pair, arrival.sessions = Pair(prefillers, self._weights(), arrival.adapter), -1
        if self.check == "off":
            return ""
        record = self._record(arrival.pair)
        return self.refusal(arrival) if self.check == "fail" and self._is_refuted(record) else ""

    def connected(self, address: PrefillerAddress, incarnation: str, sessions: int) -> None:
        """A session was opened; ``sessions`` is their number. Another process at a known address is unproven."""
        before, self._incarnations[address] = self._incarnations.get(address), incarnation
        if before in (None, incarnation):
            return
        for pair, record in self._records.items():
            if address in pair.prefillers:
                self._start_anew(record)
                record.since_sessions = sessions

    # ---- a prompt that has arrived

    def wanted(self, arrival: Arrival, comparable_tokens: int) -> Wanted:
        """What is to be done before the request is answered, as far as this rank knows."""
        if self.check == "off" or arrival.pair is None or arrival.pair.weights != self._weights():
            return Wanted.NOTHING  # KV of other weights than the present ones is not that of an own pass
        record = self._record(arrival.pair)
        if self._is_refuted(record):
            return Wanted.REFUSE if self.check == "fail" else Wanted.NOTHING
        if comparable_tokens < PROBE_TOKENS_MIN or self._is_paused(record):
            return Wanted.NOTHING
        unproven = record.state is PairState.UNPROVEN
        return Wanted.COMPARE if unproven or self.compares_all else Wanted.NOTHING

    def conclude(self, arrival: Arrival, verdict: Verdict) -> None:
        """Takes a verdict, on which all ranks agree."""
        if arrival.pair is None:
            return
        record = self._record(arrival.pair)
        if arrival.sessions < record.since_sessions:
            return
        if not verdict.judged:
            record.unjudged += 1
            record.since_seconds = self._now_seconds()
            return
        record.unjudged = 0
        record.different.append(bool(verdict.finding))
        if not verdict.finding:
            if record.state is PairState.UNPROVEN:
                self._logger.info("%s compute the same KV, up to %.2g", self._sides(arrival), verdict.worst)
            record.state = PairState.PROVEN
        elif record.state is not PairState.PROVEN or sum(record.different) > DIFFERENT_MAX:
            self._refute(record, arrival, verdict.finding)

    def refusal(self, arrival: Arrival, finding: str = "") -> str:
        """Why a request of a refuted pair is not served; ``finding`` if it is not the pair's own."""
        record = self._records.get(arrival.pair) if arrival.pair is not None else None
        found = finding or (record.finding if record is not None else "")
        return (
            f"{self._sides(arrival)} compute different KV: {found or 'another rank of this engine has found it'};"
            " correct one side's settings, or set last_token_check to 'warn' in KV_MESSENGER_OPTIONS to use its KV all"
            " the same"
        )

    def state_of(self, pair: Pair) -> PairState:
        """What is known of a pair."""
        record = self._records.get(pair)
        return record.state if record is not None else PairState.UNPROVEN

    # ---- inside

    def _record(self, pair: Pair) -> _Record:
        return record_of(self._records, pair, _Record)

    def _is_refuted(self, record: _Record) -> bool:
        """Whether the pair is refuted; after a time it is unproven again."""
        if record.state is PairState.REFUTED and self._has_aged(record):
            self._start_anew(record)
        return record.state is PairState.REFUTED

    def _is_paused(self, record: _Record) -> bool:
        if record.unjudged >= UNJUDGED_MAX and self._has_aged(record):
            record.unjudged = 0
        return record.unjudged >= UNJUDGED_MAX

    def _has_aged(self, record: _Record) -> bool:
        return self._now_seconds() - record.since_seconds >= REFUTED_SECONDS

    @staticmethod
    def _start_anew(record: _Record) -> None:
        record.state, record.finding, record.unjudged = PairState.UNPROVEN, "", 0
        record.different.clear()

    @staticmethod
    def _sides(arrival: Arrival) -> str:
        first = arrival.pair.prefillers[0] if arrival.pair is not None and arrival.pair.prefillers else None
        return f"the prefiller at {first.host}:{first.port} and this engine" if first else "a prefiller and this engine"

    def _refute(self, record: _Record, arrival: Arrival, finding: str) -> None:
        record.state, record.finding, record.since_seconds = PairState.REFUTED, finding, self._now_seconds()
        if self.check == "fail":
            self._logger.error(
                "%s compute different KV, its fetches are refused from now on: %s", self._sides(arrival), finding
            )
        else:
            self._logger.warning(
                "%s compute different KV, which is used because last_token_check is 'warn': %s",
                *(self._sides(arrival), finding),
            )
