"""What SGLang's scheduler does to one request on a prefiller, call by call, between pools without a model.

The orders are SGLang's own: the cached beginning is sent inside ``run_batch``, which the plan comes before; without
overlap a pass's chunk is sent before the next pass, with it after the next one has been launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from one_process import LAYER_COUNT, SLOT_COUNT, Pair, pages, wait_for
from sglang.srt.disaggregation.base.conn import KVPoll

from kv_connector import LayerCounter
from kv_connector.sglang.geometry import kv_buffers
from kv_connector.sglang.layerwise import LayerwiseSteps
from kv_connector.sglang.twins import Twins


@dataclass(frozen=True)
class Case:
    """A prompt of one token less than its pages hold."""

    cached_pages: int
    passes: Sequence[int]
    """How many pages each computes."""
    overlap: bool = False
    early: bool = True
    """SGLang's SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX."""

    @property
    def page_count(self) -> int:
        return self.cached_pages + sum(self.passes)


class Prefill:
    """One scheduler's passes, with a pool whose pages are written layer by layer, as a model does."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._slots = itertools.cycle(range(SLOT_COUNT))
        side = pair.prefiller
        self._page_tokens = side.shape.page_tokens
        names = [buffer.name for buffer in kv_buffers(side.endpoint.kv_args, latent=False)]
        self._counter = LayerCounter(side.endpoint.exchange._messenger.opened.layer_counter_address, names)
        self._names = names
        self.steps = LayerwiseSteps(side.endpoint.exchange, self._counter, Twins(self._page_tokens, 1))
        self._drawn = torch.Generator().manual_seed(1)

    def next_slot(self) -> int:
        return next(self._slots)

    def run(self, case: Case, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Computes and sends one prompt; every page has arrived when it returns."""
        pair, slot = self._pair, self.next_slot()
        room = pair.next_room()
        sender, receiver = pair.sender(room), pair.receiver(room)
        receiver.send_metadata(pages(*targets), slot, decode_prefix_len=0)
        wait_for(sender, KVPoll.WaitingForInput)
        sender.init(case.page_count, slot)
        self._passes(case, sender, list(sources), lambda: pair.write_metadata(slot, room, 7))
        wait_for(receiver, KVPoll.Success)
        wait_for(sender, KVPoll.Success)
        pair.assert_equal_pages(list(sources), list(targets))

    def _passes(self, case: Case, sender: Any, sources: list[int], write_metadata: Callable[[], None]) -> None:
        prompt_tokens = case.page_count * self._page_tokens - (self._page_tokens > 1)
        ends = list(itertools.accumulate(case.passes, initial=case.cached_pages))
        sent = 0

        def send(end_page: int) -> None:
            nonlocal sent
            if end_page == case.page_count:
                write_metadata()
            sender.send(pages(*sources[sent:end_page]), [] if end_page == case.page_count else None)
            sent = end_page

        def run_batch(first_page: int, end_page: int) -> None:
            if case.early and case.cached_pages and first_page == case.cached_pages:
                send(case.cached_pages)
            self.fill(sources[first_page:end_page])

        for first_page, end_page in itertools.pairwise(ends):
            tokens = min(end_page * self._page_tokens, prompt_tokens)
            plan = sender.plan(tokens, prompt_tokens, lambda first, end: sources[first:end])
            self.steps.run(
                lambda plan=plan: [] if plan is None else [plan],
                lambda first=first_page, end=end_page: run_batch(first, end),
            )
            if not case.overlap:
                send(end_page)
            elif first_page > case.cached_pages:
                send(first_page)
            sender.poll()
        if sent < case.page_count:
            send(case.page_count)

    def fill(self, computed: Sequence[int]) -> None:
        """Each layer's KV appears when its turn comes, and not before; no page is like another."""
        side, indices = self._pair.prefiller, list(computed)
        buffers = [buffer.unflatten(0, (-1, self._page_tokens)) for buffer in side.buffers()]
        for layer in range(LAYER_COUNT):
            for part, buffer in (("k", buffers[layer]), ("v", buffers[LAYER_COUNT + layer])):
                shape = (len(indices), *buffer.shape[1:])
                buffer[indices] = torch.randn(shape, generator=self._drawn).to(buffer.dtype)
                self._counter.layer_complete(f"layer.{layer}.{part}")
