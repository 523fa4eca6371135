"""Compares the first beginning that is pulled from an engine with what this one computes, before it is used.

Used by the scheduler's thread only, between two batches. An engine whose KV has not been compared, or was found
different, is asked, and what it sends is not used where ``last_token_check`` is ``fail``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kv_connector.naming.pair_rules import PairState
from kv_connector.sglang.exchange import Exchange
from kv_connector.sglang.own_pass import NoRoomError, OwnPass, give_back, on_stream
from kv_connector.sglang.pair_check import OWN_PASS_TOKENS_MAX, rows_to_compare
from kv_connector.sglang.pair_states import Arrival, PairStates, Verdict, Wanted
from kv_connector.sglang.prefix_tree import PrefixTree
from kv_connector.sglang.pull_ranks import PullRanks
from kv_connector.sglang.received_rows import ReceivedRows


class PullProof:
    """What is known of the engines that are pulled from."""

    def __init__(
        self,
        scheduler: Any,
        server_args: Any,
        tree: PrefixTree,
        pairs: PairStates,
        exchange: Exchange,
        ranks: PullRanks,
        logger: logging.Logger,
    ) -> None:
        self.pairs = pairs
        self._scheduler = scheduler
        self._server_args = server_args
        self._tree = tree
        self._exchange = exchange
        self._ranks = ranks
        self._logger = logger
        self._rows: ReceivedRows | None = None
        self._unable: str | None = None
        """Why nothing is compared; "" if something can be, None if that was not looked at yet."""

    def is_impossible(self) -> bool:
        """Whether nothing that is pulled could be used; logged once."""
        return self.pairs.check == "fail" and self._is_unable()

    def _is_unable(self) -> bool:
        if self._unable is None:
            self._rows, self._unable = rows_to_compare(self._scheduler, self._server_args)
            if self._unable:
                self._logger.warning(
                    "pulled KV cannot be compared with this engine's own: %s; %s (last_token_check)",
                    self._unable,
                    "nothing is pulled" if self.pairs.check == "fail" else "it is used all the same",
                )
        return bool(self._unable)

    def is_due(self, arrival: Arrival) -> bool:
        """Whether the beginning is to be compared once it has arrived, and so is fetched from its first token on."""
        return self.pairs.wanted(arrival, OWN_PASS_TOKENS_MAX) is Wanted.COMPARE and not self._is_unable()

    def proves(self, arrival: Arrival, tokens: Sequence[int], slots: Any, end_count: int) -> bool:
        """Whether what has arrived may be used: it is compared if that is due. All ranks give the same answer.

        :param slots: those into which it has arrived, the last ones before token ``end_count``
        """
        if self.pairs.check == "off" or arrival.pair is None:
            return True
        computed_count = min(end_count, OWN_PASS_TOKENS_MAX)
        comparable_count = 0 if self._is_unable() else computed_count - (end_count - len(slots))
        (is_due,) = self._ranks.any_has([self.pairs.wanted(arrival, comparable_count) is Wanted.COMPARE])
        if is_due:
            verdict = self._agreed_verdict(tokens[:computed_count], slots, end_count - len(slots))
            self.pairs.conclude(arrival, verdict)
            self._exchange.count_compared(verdict.outcome, verdict.worst, arrival.pair.prefillers)
        proven = self.pairs.check == "warn" or self.pairs.state_of(arrival.pair) is PairState.PROVEN
        return self._ranks.all_have([proven])[0]

    def _agreed_verdict(self, tokens: Sequence[int], slots: Any, first_token: int) -> Verdict:
        """Computes and compares, on all ranks or on none: their passes exchange data."""
        own = self._prepared(tokens)
        try:
            (ready,) = self._ranks.all_have([own is not None])
            mine = Verdict(judged=False)
            if ready and own is not None:
                mine = self._judged(own, slots, first_token)
        finally:
            give_back(own, self._logger)
        unjudged, different = self._ranks.any_has([not mine.judged, bool(mine.finding)])
        finding = mine.finding or ("another rank of this engine has found it, see its log" if different else "")
        return replace(mine, judged=not unjudged or different, finding=finding)

    def _prepared(self, tokens: Sequence[int]) -> OwnPass | None:
        try:
            self._tree.free_up(len(tokens))
            return OwnPass(self._scheduler, tokens, None)
        except NoRoomError as full:
            self._logger.info("pulled KV is not compared: %s", full)
        except Exception:
            self._logger.exception("pulled KV is not compared")
        return None

    def _judged(self, own: OwnPass, slots: Any, first_token: int) -> Verdict:
        try:
            if self._rows is None:
                raise AssertionError("a comparison without rows")
            with on_stream(self._scheduler):
                own.run()
                return self._rows.landed_verdict(slots, own.row, first_token, own.token_count)
        except Exception:
            self._logger.exception("pulled KV could not be compared")
            return Verdict(judged=False)
