"""Passes as CUDA graphs, decodes and prefills alike: one for each size of batch, of all layers with their hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_engine.batch import Batch, Inputs

WARM_UPS = 2


@dataclass
class _Graph:
    given: Inputs
    sampled: Tensor
    graph: Any
    """torch.cuda.CUDAGraph."""


class Graphs:
    """Captured when made, the largest first so that the others share its memory. Launches go to the current stream."""

    def __init__(self, batch: Batch, compute: Callable[[Inputs], Tensor]) -> None:
        self._batch = batch
        self._compute = compute
        rows = _sizes(1, batch.plan.requests_max)
        widths = [1, *_sizes(16, batch.plan.chunk_tokens)]
        pool = torch.cuda.graph_pool_handle()
        self._graphs = {
            (count, width): self._capture(count, width, compute, pool)
            for count in reversed(rows)
            for width in reversed(widths)
        }
        self._smallest = self._graphs[min(self._graphs)].given
        self.launched = 0

    def _capture(self, rows: int, width: int, compute: Callable[[Inputs], Tensor], pool: Any) -> _Graph:
        given = self._batch.empty(rows, width, self._batch.blocks_max, self._batch.plan.device)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                compute(given)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            sampled = compute(given)
        return _Graph(given, sampled, graph)

    def capture_once_more(self) -> None:
        """Captures the smallest graph anew and drops it, as an engine does that adapts its graphs while it serves.

        In torch's default mode: CUDA then ends the capture for an unsafe call of any thread of the process.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute(self._smallest)

    def run(self, given: Inputs) -> Tensor:
        """Launches the smallest graph that the batch fits into; the next tokens, padding behind them."""
        key = min(key for key in self._graphs if key[0] >= given.rows and key[1] >= given.width)
        chosen = self._graphs[key]
        given.copy_into(chosen.given)
        chosen.graph.replay()
        self.launched += 1
        return chosen.sampled


def _sizes(least: int, most: int) -> list[int]:
    """Powers of two, and the most."""
    sizes = []
    size = least
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most]
