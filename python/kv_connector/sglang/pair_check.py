"""Compares a received prompt with what this decoder computes itself, before SGLang uses it; all ranks act alike.

Called where SGLang verifies its own checksums: with a batch of requests whose KV has arrived, before anything of it is
cached or answered. What is done depends only on values on which the ranks have agreed, because an own pass exchanges
data between them. A fault before, in or after the pass leaves the prompt unjudged, and the request is served.
Used by the scheduler's thread only.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from kv_connector.naming.pair_rules import PROBE_TOKENS_MIN
from kv_connector.sglang.exchange import Exchange
from kv_connector.sglang.own_pass import NoRoomError, OwnPass, give_back, on_stream, unsafe
from kv_connector.sglang.pair_states import Arrival, PairStates, Verdict, Wanted
from kv_connector.sglang.received_rows import ReceivedRows, Rows

OWN_PASS_TOKENS_MAX = 512
"""Of a longer prompt only the beginning is computed: a decoder's memory is sized for small passes."""
_ARRIVAL = "kv_messenger_arrival"
"""The attribute of SGLang's request that holds its ``Arrival``."""


def rows_to_compare(scheduler: Any, server_args: Any) -> tuple[ReceivedRows | None, str]:
    """The rows that an own pass may be compared with; None, and why there are none, where nothing can be compared."""
    try:
        unable = unsafe(scheduler, server_args)
        return (None, unable) if unable else (ReceivedRows(scheduler), "")
    except Exception as fault:
        return None, str(fault) or repr(fault)


def bind(request: Any, arrival: Arrival) -> None:
    """Remembers with SGLang's request how its KV arrives; for the batch that it will be in.

    SGLang caches the KV of a request whose client leaves before that batch. Nothing has compared it yet, so it is not
    cached.
    """
    _taken(request)
    arrival.kept_from_cache = not request.skip_radix_cache_insert
    request.skip_radix_cache_insert = True
    setattr(request, _ARRIVAL, arrival)


class PairCheck:
    """The check of one rank."""

    def __init__(
        self,
        pairs: PairStates,
        exchange: Exchange,
        server_args: Any,
        *,
        window_tokens: int,
        logger: logging.Logger,
    ) -> None:
        """``window_tokens``: of layers with a pool of their own; 0 = there are none."""
        self.pairs = pairs
        self._exchange = exchange
        self._server_args = server_args
        self._window_tokens = window_tokens
        self._logger = logger
        self._rows: ReceivedRows | None = None
        self._unable: str | None = None
        """Why this rank compares nothing; "" if it can, None if that was not looked at yet."""

    def of_batch(self, scheduler: Any, batch: Any) -> None:
        """Compares what is due in a batch, and takes requests of refuted pairs out of it, with an error."""
        arrivals = [_taken(request) for request in batch.reqs]
        if self.pairs.check == "off" or not any(arrivals):
            return
        due = [self._wanted(scheduler, *each) for each in zip(batch.reqs, arrivals, strict=True)]
        wanted = self._agreed(scheduler, due)
        refused = self._compared(scheduler, batch.reqs, arrivals, wanted)
        self._drop(scheduler, batch, arrivals, refused)

    # ---- what is due

    def _wanted(self, scheduler: Any, request: Any, arrival: Arrival | None) -> int:
        try:
            if arrival is None:
                return Wanted.NOTHING
            comparable = 0 if self._is_unable(scheduler) else _comparable_tokens(request)
            return self.pairs.wanted(arrival, comparable)
        except Exception:
            self._logger.exception("the KV of request %s is not compared", request.rid)
            return Wanted.NOTHING

    def _is_unable(self, scheduler: Any) -> bool:
        """Whether this rank can compare nothing; logged once."""
        if self._unable is None:
            self._rows, self._unable = rows_to_compare(scheduler, self._server_args)
            if self._unable:
                self._logger.warning(
                    "received KV is not compared with this engine's own, so a prefiller that computes another KV is"
                    " not found: %s (last_token_check)",
                    self._unable,
                )
        return bool(self._unable)

    def _compared(
        self, scheduler: Any, requests: Sequence[Any], arrivals: Sequence[Arrival | None], wanted: Sequence[int]
    ) -> dict[int, str]:
        """The places of requests that must not be answered, with what was found of each; "" = known of its pair."""
        refused = {place: "" for place, due in enumerate(wanted) if due == Wanted.REFUSE}
        found: set[tuple[object, ...]] = set()
        for place, due in enumerate(wanted):
            arrival = arrivals[place]
            if due != Wanted.COMPARE or arrival is None:
                continue
            pair = _pair_on_all_ranks(requests[place])
            if place in refused or (pair in found and not self._is_still_due(scheduler, requests[place], arrival)):
                continue
            verdict = self._agreed_verdict(scheduler, requests[place])
            found.add(pair)
            self._conclude(arrival, verdict)
            if verdict.finding and self.pairs.check == "fail":
                refused |= self._others(requests, arrivals, pair, verdict.finding)
        return refused

    def _is_still_due(self, scheduler: Any, request: Any, arrival: Arrival) -> bool:
        """Whether the verdict about an earlier one of the batch has settled nothing: it came from another process."""
        return self._agreed(scheduler, [self._wanted(scheduler, request, arrival)]) == [Wanted.COMPARE]

    @staticmethod
    def _others(
        requests: Sequence[Any], arrivals: Sequence[Arrival | None], pair: tuple[object, ...], finding: str
    ) -> dict[int, str]:
        """All requests of a pair in the batch: their KV is as wrong."""
        return {
            place: finding
            for place, request in enumerate(requests)
            if arrivals[place] is not None and _pair_on_all_ranks(request) == pair
        }

    def _conclude(self, arrival: Arrival, verdict: Verdict) -> None:
        try:
            self.pairs.conclude(arrival, verdict)
            if arrival.pair is not None:
                self._exchange.count_compared(verdict.outcome, verdict.worst, arrival.pair.prefillers)
        except Exception:
            self._logger.exception("the verdict about a prefiller is lost")

    # ---- an own pass

    def _agreed_verdict(self, scheduler: Any, request: Any) -> Verdict:
        """Computes and compares, on all ranks or on none."""
        begun_seconds = time.perf_counter()
        own = self._prepared(scheduler, request)
        try:
            (ready,) = self._agreed(scheduler, [int(own is not None)], lowest=True)
            mine = self._judged(scheduler, request, own) if ready and own is not None else Verdict(judged=False)
        finally:
            give_back(own, self._logger)
        unjudged, different = self._agreed(scheduler, [int(not mine.judged), int(bool(mine.finding))])
        verdict = dataclasses.replace(mine, judged=not unjudged or bool(different))
        if different and not mine.finding:
            verdict = dataclasses.replace(verdict, finding="another rank of this engine has found it, see its log")
        self._logger.info(
            "request %s: %d tokens were computed here in %.0f ms, the largest difference is %.3g, %s",
            request.rid,
            own.token_count if own is not None else 0,
            1000 * (time.perf_counter() - begun_seconds),
            mine.worst,
            "different" if verdict.finding else "equal" if verdict.judged else "not judged",
        )
        return verdict

    def _prepared(self, scheduler: Any, request: Any) -> OwnPass | None:
        if self._is_unable(scheduler):
            return None
        try:
            return OwnPass(scheduler, _tokens(request)[:OWN_PASS_TOKENS_MAX], request.lora_id)
        except NoRoomError as full:
            self._logger.info("the KV of request %s is not compared: %s", request.rid, full)
        except Exception:
            self._logger.exception("the KV of request %s is not compared", request.rid)
        return None

    def _judged(self, scheduler: Any, request: Any, own: OwnPass) -> Verdict:
        try:
            if self._rows is None:
                raise AssertionError("an own pass on a rank that compares nothing")
            with on_stream(scheduler):
                own.run()
                return self._rows.verdict(
                    Rows(
                        received_row=int(request.kv.req_pool_idx),
                        own_row=own.row,
                        first_token=int(request.kv.cache_protected_len),
                        computed_tokens=own.token_count,
                        received_tokens=len(_tokens(request)),
                        window_tokens=self._window_tokens,
                    )
                )
        except Exception:
            self._logger.exception("the KV of request %s could not be compared", request.rid)
            return Verdict(judged=False)

    # ---- its result

    def _drop(self, scheduler: Any, batch: Any, arrivals: Sequence[Arrival | None], refused: dict[int, str]) -> None:
        """Takes these requests out of the batch, each with an error for its client."""
        if not refused:
            return
        for place, finding in refused.items():
            sentence = self.pairs.refusal(arrivals[place] or Arrival(), finding)
            self._logger.error("request %s fails: %s", batch.reqs[place].rid, sentence)
            self._end(scheduler, batch.reqs[place], sentence)
        batch.filter_batch(keep_indices=[place for place in range(len(batch.reqs)) if place not in refused])

    def _end(self, scheduler: Any, request: Any, sentence: str) -> None:
        """Ends a request as SGLang ends one whose checksum is wrong.

        A step that fails leaves the others: the request is out of the batch on the other ranks, so it must be on this
        one, and what was released must not be used.
        """
        for step in (_answer, _release, _count):
            try:
                step(scheduler, request, sentence)
            except Exception:
                self._logger.exception("a step of ending request %s has failed", request.rid)

    @staticmethod
    def _agreed(scheduler: Any, values: Sequence[int], *, lowest: bool = False) -> list[int]:
        """The highest (or lowest) value of all tensor-parallel ranks, place by place. Waits for all of them."""
        import torch.distributed as dist

        operation = dist.ReduceOp.MIN if lowest else dist.ReduceOp.MAX
        return reduced([int(value) for value in values], scheduler.attn_tp_cpu_group, operation)


def reduced(values: list[int], group: Any, operation: Any) -> list[int]:
    """The values of all ranks of a group, reduced place by place."""
    import torch
    import torch.distributed as dist

    if not values or dist.get_world_size(group) == 1:
        return values
    gathered = torch.tensor(values, dtype=torch.int32)
    dist.all_reduce(gathered, op=operation, group=group)
    return list(gathered.tolist())


def compare_received(original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps ``_verify_kv_checksums``, which SGLang calls with each batch whose KV has arrived."""
    check = getattr(scheduler.disagg_decode_prealloc_queue.kv_manager, "pair_check", None)
    if check is not None:
        check.of_batch(scheduler, batch)
    return None if batch.is_empty() else original(scheduler, batch, *args, **kwargs)


def _answer(scheduler: Any, request: Any, sentence: str) -> None:
    from sglang.srt.disaggregation.utils import prepare_abort

    prepare_abort(request, sentence, status_code=HTTPStatus.INTERNAL_SERVER_ERROR)
    scheduler.output_streamer.stream_output([request], request.return_logprob)


def _release(scheduler: Any, request: Any, _sentence: str) -> None:
    from sglang.srt.mem_cache.common import release_kv_cache

    release_kv_cache(request, scheduler.tree_cache, checkpoint=False)


def _count(scheduler: Any, _request: Any, _sentence: str) -> None:
    if scheduler.metrics_reporter.enable_metrics:
        scheduler.metrics_collector.increment_transfer_failed_reqs()


def _taken(request: Any) -> Arrival | None:
    """The arrival of a request that was not in a batch yet: one that is resumed later has tokens of its own."""
    arrival: Arrival | None = getattr(request, _ARRIVAL, None)
    if arrival is not None:
        delattr(request, _ARRIVAL)
        if arrival.kept_from_cache:
            request.skip_radix_cache_insert = False
    return arrival


def _pair_on_all_ranks(request: Any) -> tuple[object, ...]:
    """What a request shares with others of its pair, by values that are equal on all ranks."""
    return request.bootstrap_host, request.bootstrap_port, request.disagg_prefill_dp_rank, request.lora_id


def _tokens(request: Any) -> Sequence[int]:
    """The tokens whose KV was received: the last one of the answer has none yet."""
    tokens: Sequence[int] = request.origin_input_ids + request.output_ids[:-1]
    return tokens


def _comparable_tokens(request: Any) -> int:
    """How many received tokens an own pass can compute; 0 if the prompt is not one of tokens alone."""
    plain = (
        request.multimodal_inputs is None
        and not request.input_embeds
        and request.positional_embed_overrides is None
        and request.token_type_ids is None
        and request.session is None
    )
    if not plain:
        return 0
    comparable = min(len(_tokens(request)), OWN_PASS_TOKENS_MAX) - int(request.kv.cache_protected_len)
    return comparable if comparable >= PROBE_TOKENS_MIN else 0
