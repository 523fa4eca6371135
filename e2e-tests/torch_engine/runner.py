"""Computes planned passes, and calls the worker's connector around them in the order of vLLM's second model runner."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from torch_engine.batch import Batch, Inputs
from torch_engine.graphs import Graphs
from torch_engine.model import Model, attention
from torch_engine.pages import Pages
from torch_engine.plan import EnginePlan
from torch_engine.scheduler import Planned, Request
from torch_engine.stand_in import StandInStream

LEAVES_LIMIT_SECONDS = 120.0
"""Bounds a pass that is held for a layer that does not leave."""
POLL_SECONDS = 0.0005
HELD_CYCLES = 2_000_000
"""About a millisecond of a GPU."""


class Runner:
    """The engine's thread only."""

    def __init__(self, plan: EnginePlan, connector: Any) -> None:
        self._plan = plan
        self._connector = connector
        self._names = plan.shape.layer_names()
        self._model = Model(plan.shape, plan.device)
        self.pages = Pages(plan, connector.get_mem_pool_context() if connector is not None else None)
        self._batch = Batch(plan)
        self._graphs: Graphs | None = None
        self.layers_sent: Callable[[], float] | None = None
        """What the messenger says of that; passes are held for it where the plan wants so."""
        self._due = 0.0
        self.captured = 0
        """Graphs, since the start was over."""
        self._launch_counting: Callable[[], None] | None = None
        """Of a graph that counts all layers, in place of their hooks."""
        self._await_last_pass: Callable[[], None] | None = None
        """Where counting is behind computing: at most two steps are in flight, as where a GPU's tokens are awaited."""

    def capture(self, stand_in: StandInStream | None) -> None:
        """After the connector knows the pages, as vLLM does. What the stand-in captures is the counting alone."""
        if stand_in is not None:
            self._await_last_pass = stand_in.finish
        if self._plan.graphs and stand_in is not None:
            self._launch_counting = stand_in.capture(self._fire_hooks)
        elif self._plan.graphs:
            self._graphs = Graphs(self._batch, self._compute)
        if self._connector is not None:
            self._connector.reset_capture_state()

    def capture_once_more(self) -> None:
        """On a GPU with graphs: a capture between two steps, while the messenger's threads go on."""
        if self._graphs is not None:
            self._graphs.capture_once_more()
            self.captured += 1

    def execute(self, planned: Planned, requests: Mapping[str, Request]) -> tuple[dict[str, int], Any]:
        """The token after each request's part of the pass, and what the connector reports."""
        rows = [(requests[name], count) for name, count in planned.num_scheduled_tokens.items()]
        if self._connector is None:
            return self._sampled(rows, self._run(rows)), None
        meta = pickle.loads(pickle.dumps(planned.kv_connector_metadata))
        self._connector.handle_preemptions(meta)
        self._connector.bind_connector_metadata(meta)
        queued = None
        try:
            if rows:
                queued = self._run(rows)
                self._connector.finish_forward()
            self._connector.start_load_kv(None)
        finally:
            self._connector.wait_for_save()
        reports = self._reports(planned)
        self._connector.clear_connector_metadata()
        return self._sampled(rows, queued), reports

    def _reports(self, planned: Planned) -> Any:
        results = self._connector.get_transfer_results(planned.finished_req_ids)
        assert not self._connector.get_block_ids_with_load_errors(), "a failure was told in two ways"
        self._connector.get_kv_connector_stats()
        news = self._connector.build_connector_worker_meta()
        return SimpleNamespace(
            finished_sending=results.finished_sending or None,
            finished_recving=results.finished_recving or None,
            failed_recving=results.failed_recving,
            kv_connector_worker_meta=pickle.loads(pickle.dumps(news)),
        )

    # ---- a pass

    def _run(self, rows: Sequence[tuple[Request, int]]) -> Tensor | None:
        """The likeliest next token of each row; on a GPU it is only queued when this returns."""
        if not rows:
            return None
        if self._await_last_pass is not None:
            self._await_last_pass()
        if self.layers_sent is not None:
            self._await_layers()  # the last pass's last layer, which no pass was held for
            self._due = self.layers_sent()
        given = self._batch.of(rows)
        sampled = self._graphs.run(given) if self._graphs is not None else self._compute(self._batch.on_device(given))
        if self._launch_counting is not None:
            for _ in range(2 if self._plan.counts_twice else 1):
                self._launch_counting()
        return sampled

    def _fire_hooks(self) -> None:
        for name in self._names:
            if self._wants_hooks():
                self._connector.save_kv_layer(name, self.pages.named[name], None)

    def _wants_hooks(self) -> bool:
        """As vLLM asks before it calls the hooks of a layer."""
        return self._connector is not None and self._connector.has_connector_metadata()

    def _compute(self, given: Inputs) -> Tensor:
        visible = self._batch.visible(given.positions)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            name = self._names[layer]
            hooked = self._launch_counting is None and self._wants_hooks()
            if hooked:
                self._connector.wait_for_layer_load(name)
            self.pages.write(layer, given.slots, keys, values)
            kept = self.pages.read(layer, given.tables)
            seen = attention(queries, *kept, visible[..., : kept[0].shape[1]])
            if hooked:
                self._connector.save_kv_layer(name, self.pages.named[name], None)
                self._hold(layer)
            return seen

        with torch.inference_mode():
            states = self._model(given.tokens, given.positions, attend)
            last = states[torch.arange(len(states), device=states.device), given.last]
            return self._model.next_tokens(last)

    def _hold(self, layer: int) -> None:
        """On a GPU the device waits, and the host does not: also in each replay of a graph that is captured now."""
        if self._plan.held and self._plan.device == "cuda":
            torch.cuda._sleep(HELD_CYCLES)
            return
        self._due += 1
        if layer < len(self._names) - 1:
            self._await_layers()

    def _await_layers(self) -> None:
        """Until all that are due have left."""
        limit = time.monotonic() + LEAVES_LIMIT_SECONDS
        while self.layers_sent is not None and self.layers_sent() < self._due and time.monotonic() < limit:
            time.sleep(POLL_SECONDS)

    @staticmethod
    def _sampled(rows: Sequence[tuple[Request, int]], queued: Tensor | None) -> dict[str, int]:
        if queued is None:
            return {}
        return {request.request_id: token for (request, _), token in zip(rows, on_host(queued), strict=False)}


def on_host(tokens: Tensor) -> list[int]:
    """Waits for an event, as vLLM does.

    While a copy into pageable memory waits for its pass, CUDA lets no other thread copy (vllm-project/vllm#22754): no
    page of device memory would leave before the pass has ended.
    """
    if tokens.device.type == "cpu":
        return [int(token) for token in tokens.tolist()]
    copied = torch.cuda.Event()
    pinned = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    pinned.copy_(tokens, non_blocking=True)
    copied.record()
    copied.synchronize()
    return [int(token) for token in pinned.tolist()]
