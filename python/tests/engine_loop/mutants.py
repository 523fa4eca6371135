"""The connector, broken on purpose in one place: the loop must find each of these, or it would find none like it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mutant import Mutant

from engine_loop.traffic import GRANTS_AWAITED_ROUNDS
from kv_connector.vllm import beginnings, connector, fetch_names, kv_groups, prefill_chunks, rejections
from kv_connector.vllm.fetch_gate import FetchGate
from kv_connector.vllm.kv_groups import KvGroup
from kv_connector.vllm.offers import Offers
from kv_connector.vllm.outgoing_prefills import OutgoingPrefills
from kv_connector.vllm.prefill_chunks import PrefillChunks
from kv_connector.vllm.pulls import Pulls
from kv_connector.vllm.scheduler_half import SchedulerHalf
from kv_connector.vllm.window_blocks import WindowBlocks
from kv_connector.vllm.worker_half import WorkerHalf

_end: Callable[..., Any] = OutgoingPrefills.end
_plan: Callable[..., Any] = PrefillChunks.plan
_take_in: Callable[..., Any] = SchedulerHalf._take_in
_allocated: Callable[..., Any] = Pulls.allocated
_ask: Callable[..., Any] = Pulls._ask
_on_sent: Callable[..., Any] = WorkerHalf._on_sent
_asked: Callable[..., Any] = Offers.asked


@dataclass(frozen=True)
class WorldMutant(Mutant):
    """With the world that finds it."""

    kind: str
    seed: int
    found_as: str | tuple[str, ...]
    """How the violation begins, one of several where the machine's speed decides."""
    patience_seconds: float = 0.0
    """The least after which its world stands still: longer than what is held there rightly."""
    grants_awaited_rounds: float = GRANTS_AWAITED_ROUNDS
    """More, where nothing is wrong unless grants are there before the prompt: a busy machine's messengers need long."""
    worlds: int = 1
    """In how many, by seeds from this one on, it is looked for: more where a messenger has to be in time for one."""


def _cached_in_place(self: Any, request: str, prefill: Any, *where: Any) -> Any:
    first_token = where[2]
    chunk = _plan(self, request, prefill, *where)
    if chunk is not None and chunk.first_token == 0:
        return replace(chunk, cached_tokens=first_token, first_token=first_token)
    return chunk


def _no_word_of_aborts(self: Any, end: Any) -> None:
    if end.outcome != "aborted":
        _end(self, end)
        return
    self._sending.discard(end.request)
    self._on_sent(end.request)


def _freed_before_sent(self: Any, end: Any) -> None:
    _end(self, end)
    self._on_sent(end.request)
    self._ended.pop(end.request, None)


def _first_page_missing(self: Any, request: Any, ask: Any, block_ids: tuple[list[int], ...], tokens: int) -> None:
    """The pages that are granted are those of the request, one place off."""
    shifted = tuple([*blocks[1:], blocks[0]] for blocks in block_ids)
    _take_in(self, request, ask, shifted, tokens)


def _salt_lost(self: Any, request: Any, *more: Any) -> None:
    _take_in(self, request, *more)
    self._pending.fetches = [replace(fetch, cache_salt="") for fetch in self._pending.fetches]


def _send_half_cleared(self: Any, request: Any, *more: Any) -> Any:
    blocks = _allocated(self, request, *more)
    if blocks is not None:
        request.kv_transfer_params |= {"do_remote_prefill": False, "do_remote_decode": False}
    return blocks


def _reported_twice(self: Any, request: str) -> None:
    if self._ended_loading.has(request):
        self._reports.sent.add(request)
    _on_sent(self, request)


def _sent_by_the_first(self: Any, request: str) -> None:
    if self._is_first or not self._ended_loading.has(request):
        _on_sent(self, request)


def _asked_without_salt(self: Any, request: Any, *more: Any) -> None:
    salt, request.cache_salt = request.cache_salt, None
    _ask(self, request, *more)
    request.cache_salt = salt


def _not_pinned(self: Any, number: str, _: Any) -> None:
    self._pinned[number], self._charged[number] = [], 0


def _offered_at_once(self: Any, request: Any, carrier: Any) -> None:
    """While steps that fill the blocks may be planned and not begun."""
    _asked(self, request, carrier)
    worker = self._pool.engine.executor.ranks[0].connector._worker
    worker._pulls.offer(self._waiting.pop().offer, worker._news, math.inf)


MUTANTS = (
    WorldMutant(
        "pages found in the prefix cache are said to be in place",
        *(PrefillChunks, "plan", _cached_in_place),
        *("beginnings", 1, "wrong page"),
        grants_awaited_rounds=5000,
    ),
    WorldMutant(
        "no prompt has a digest",
        *(connector, "digest_of", lambda *_: "0" * 32),
        *("same-id", 2, "wrong page"),
    ),
    WorldMutant(
        "the decoder is not told of an aborted prefill",
        *(OutgoingPrefills, "end", _no_word_of_aborts),
        *("aborts-known", 1, "stands still"),
    ),
    WorldMutant(
        "a decoder says nothing of what it has queued",
        *(WorkerHalf, "_expect", lambda *_: None),
        *("crossed", 8, "stands still"),
    ),
    WorldMutant(
        "a decoder fills its pool with pages for prompts that are not computed",
        *(FetchGate, "holds_back", lambda *_: False),
        *("crossed", 8, "stands still"),
    ),
    WorldMutant(
        "a prefiller's pages are used again before they are sent",
        *(OutgoingPrefills, "end", _freed_before_sent),
        *("routes", 1, "wrong page"),
    ),
    WorldMutant(
        "granted pages are in another order than the prompt",
        *(SchedulerHalf, "_take_in", _first_page_missing),
        *("routes", 1, "wrong page"),
    ),
    WorldMutant(
        "a prompt that the prefiller has to enqueue loses its salt",
        *(SchedulerHalf, "_take_in", _salt_lost),
        # No prompt there has the granted digest: both legs wait, and end after 5 s if the world still moves then.
        *("tenants", 1, ("stands still", "error logged: the KV of request")),
    ),
    WorldMutant(
        "a prefiller is not told of a request that the decoder's API server rejected",
        *(rejections, "logged", lambda *_: []),
        *("rejected-once", 1, "stands still", 10.0),
    ),
    WorldMutant(
        "a request that ends in the queue is not declined",
        *(SchedulerHalf, "_decline", lambda *_: None),
        *("aborts-known", 1, "stands still"),
    ),
    WorldMutant(
        "the pages of a window are used again when the prefiller decodes on, before they are sent",
        *(WindowBlocks, "keep", lambda *_: None),
        *("windows", 6, "wrong page"),
    ),
    WorldMutant(
        "vLLM takes the last token as loaded where it drops a page that this token reads",
        *(beginnings, "loaded_tokens", lambda _, prompt_tokens: prompt_tokens),
        *("windows", 2, "error logged"),
    ),
    WorldMutant(
        "vLLM takes a prompt that ends with its chunk as loaded, and drops the pages that its last token reads",
        *(KvGroup, "loses_first_needed", lambda *_: False),
        *("chunks", 1, "error logged"),
    ),
    WorldMutant(
        "a prefiller's state has the last token in it, which the decoder computes again",
        *(prefill_chunks, "leave_out_last_token", lambda request, _: request.num_prompt_tokens),
        *("states", 1, "error logged"),
    ),
    WorldMutant(
        "a window beside state begins with a page that vLLM has dropped",
        *(kv_groups, "_behind_the_last", lambda group: group),
        *("states", 8, "error logged"),
    ),
    WorldMutant(
        "a beginning is asked for by the digest of the whole prompt",
        *(fetch_names, "part_of", lambda request, _: request),
        *("goes-on", 2, ("stands still", "failed", "error logged")),
    ),
    WorldMutant(
        "the token behind a beginning counts as loaded",
        *(beginnings, "loaded_of_beginning", lambda _, tokens, **__: tokens + 1),
        *("goes-on", 2, "wrong page"),
    ),
    WorldMutant(
        "a pull takes back that its request is to be sent on",
        *(Pulls, "allocated", _send_half_cleared),
        *("pulls-counted", 1, "params changed"),
    ),
    WorldMutant(
        "a request that ends while it loads and is sent on is reported twice",
        *(WorkerHalf, "_on_sent", _reported_twice),
        *("pulls-left", 1, "engine died"),
    ),
    WorldMutant(
        "an engine asks for the blocks of a prompt without its salt",
        *(Pulls, "_ask", _asked_without_salt),
        *("pulls-counted", 1, "computed"),
    ),
    WorldMutant(
        "what is offered is not held",
        *(Offers, "_pin", _not_pinned),
        *("pulls-evicted", 1, "wrong page"),
    ),
    WorldMutant(
        "what is offered is sent before the steps are over that fill it",
        *(Offers, "asked", _offered_at_once),
        *("pulls-twins", 1, "wrong page"),
        worlds=10,  # three of four show it
    ),
    WorldMutant(
        "a request that ends while it loads and is sent on is not counted as released by each messenger",
        *(WorkerHalf, "_on_sent", _sent_by_the_first),
        *("pulls-ranks", 1, "stands still"),
    ),
)
