"""The real check of pairs on every rank of a decoder; own passes and comparisons look into the stories' pools.

All ranks run it at once, each on a thread, because they exchange values. They share nothing else.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from kv_connector.sglang import pair_check, pair_states
from kv_connector.sglang.pair_states import Verdict

if TYPE_CHECKING:
    from sglang_loop.decode_engine import DecodeRequest
    from sglang_loop.ranks import Rank

TOKENS_MIN = 1
"""The stories' prompts are short; of each at least one token is received."""
RANKS_WAIT_SECONDS = 600.0


class OwnPass:
    """Computes what every right engine computes, so that nothing is left to do."""

    row = -1

    def __init__(self, _scheduler: Any, tokens: Sequence[int], _adapter: str | None) -> None:
        self.token_count = len(tokens)

    def run(self) -> None:
        """There is no device."""

    def release(self) -> None:
        """It has no pages."""


class Rows:
    """Looks at the heads of one rank."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def verdict(self, rows: Any) -> Verdict:
        """Whether the pages from the first received token on hold the right KV."""
        request, pool = self._scheduler.requests[rows.received_row], self._scheduler.pool
        first = rows.first_token // self._scheduler.page_tokens
        pairs = list(zip(request.table.pages, request.table.keys, strict=True))[first:]
        right = all(pool.holds(page, key, self._scheduler.heads) for page, key in pairs)
        return Verdict(True, 0.0 if right else 1.0, "" if right else "the KV of layer 0 differs")


@dataclass(eq=False)
class Agreement:
    """What the ranks of an engine exchange: SGLang's group of processes."""

    ranks: int
    _values: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._all_have_given = threading.Barrier(self.ranks)
        self._all_have_taken = threading.Barrier(self.ranks, self._values.clear)

    def reduce(self, values: Sequence[int], operation: Any) -> list[int]:
        self._values.append(list(values))
        self._all_have_given.wait(RANKS_WAIT_SECONDS)
        choose = min if "MIN" in str(operation) else max
        agreed = [choose(place) for place in zip(*self._values, strict=True)]
        self._all_have_taken.wait(RANKS_WAIT_SECONDS)
        return agreed


@dataclass(eq=False)
class Batch:
    """One rank's view of requests that have arrived."""

    reqs: list[Any]

    def filter_batch(self, keep_indices: Sequence[int]) -> None:
        self.reqs = [self.reqs[place] for place in keep_indices]

    def is_empty(self) -> bool:
        return not self.reqs


def in_place() -> contextlib.ExitStack:
    """What the check finds of SGLang and of a GPU."""
    stack = contextlib.ExitStack()
    reduce: Callable[..., Any] = lambda values, group, operation: group.reduce(values, operation)  # noqa: E731
    replaced = {
        "reduced": reduce,
        "OwnPass": OwnPass,
        "ReceivedRows": Rows,
        "unsafe": lambda *_: "",
        "on_stream": lambda _: contextlib.nullcontext(),
        "PROBE_TOKENS_MIN": TOKENS_MIN,
        "_answer": lambda _, request, sentence: request.refused.append(sentence),
        "_release": lambda *_: None,  # the engine does it once, for all ranks
        "_count": lambda *_: None,
    }
    for name, value in replaced.items():
        stack.enter_context(mock.patch.object(pair_check, name, value))
    stack.enter_context(mock.patch.object(pair_states, "PROBE_TOKENS_MIN", TOKENS_MIN))
    return stack


class PairProbe:
    """The check on all ranks of one engine."""

    def __init__(self, ranks: Sequence[Rank], page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._schedulers = [
            SimpleNamespace(
                disagg_decode_prealloc_queue=SimpleNamespace(kv_manager=rank.endpoint),
                pool=rank.memory.pool,
                page_tokens=page_tokens,
                heads=rank.messenger.heads,
            )
            for rank in ranks
        ]

    def refused(self, requests: Sequence[DecodeRequest]) -> dict[DecodeRequest, str]:
        """Those that every rank takes out of the batch, with the sentence for their client."""
        agreement = Agreement(len(self._schedulers))
        with ThreadPoolExecutor(len(self._schedulers)) as threads:
            at_ranks = range(len(self._schedulers))
            kept = list(threads.map(lambda at: self._kept(at, requests, agreement), at_ranks))
        assert all(each == kept[0] for each in kept), "the ranks of an engine go on with different requests"
        return {request: "; ".join(request.refused) for request in requests if request not in kept[0]}

    def _kept(self, at: int, requests: Sequence[DecodeRequest], agreement: Agreement) -> list[DecodeRequest]:
        batch = Batch([_view(request, at, place, self._page_tokens) for place, request in enumerate(requests)])
        scheduler = self._schedulers[at]
        scheduler.requests, scheduler.attn_tp_cpu_group = requests, agreement
        pair_check.compare_received(lambda *_: None, scheduler, batch)
        return [view.request for view in batch.reqs]


def _view(request: DecodeRequest, at: int, place: int, page_tokens: int) -> Any:
    host, port = request.ask.bootstrap.split(":")
    view = SimpleNamespace(
        request=request,
        refused=request.refused,
        rid=str(request.ask),
        bootstrap_host=host,
        bootstrap_port=int(port),
        disagg_prefill_dp_rank=request.ask.dp_rank,
        lora_id=None,
        origin_input_ids=list(request.tokens),
        output_ids=[0],
        multimodal_inputs=None,
        input_embeds=None,
        positional_embed_overrides=None,
        token_type_ids=None,
        session=None,
        kv=SimpleNamespace(req_pool_idx=place, cache_protected_len=request.table.shared * page_tokens),
    )
    setattr(view, pair_check._ARRIVAL, request.receivers.of_ranks[at].arrival)
    return view


def other_computation(key: Any) -> Any:
    """The KV of a prefiller that computes another one, for a page of that key."""
    return ("another computation", key)
