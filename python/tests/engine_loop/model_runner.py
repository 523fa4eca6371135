"""Executes what vLLM's scheduler planned: a model whose KV is a digest of the tokens and which reads all of it.

As in vLLM a pass runs layer by layer; in each, all scheduled tokens are written first and then read, and the hooks of
the connector are called around it in vLLM's order, by vLLM's own mixin. Every read is checked.
"""

from __future__ import annotations

import contextlib
import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer import kv_transfer_state
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from engine_loop.kv_pages import BLOCK_TOKENS, LAYERS, TOKENS_ONLY, Beside, KvPages, digests, next_token


@dataclass(frozen=True)
class LayerGroup:
    """Where the engine looks for the blocks of a layer."""

    index: int = 0
    window_tokens: int = 0
    """How many of the last tokens a token reads, itself included; 0 = all."""
    chunk_tokens: int = 0
    """It reads those of its chunk of so many tokens; 0 = there are no chunks."""
    state: bool = False
    """It keeps one state of all tokens, which a pass reads before it writes the next."""

    def first_read(self, first: int) -> int:
        """The first token that a pass reads which computes those from ``first`` on."""
        if self.chunk_tokens:
            return first // self.chunk_tokens * self.chunk_tokens
        return max(0, first - self.window_tokens + 1) if self.window_tokens else 0


@dataclass
class Rank:
    """A worker: its part of the KV cache and its connector."""

    pages: KvPages
    connector: Any


@dataclass
class RunningRequest:
    """What a model runner keeps of a request."""

    tokens: list[int]
    prompt_tokens: int
    beside: Beside
    tables: list[list[int]] = field(default_factory=list)
    """Its blocks in each group."""
    computed: int = 0
    known: int = 0
    """Tokens that the scheduler counts: the prompt and the outputs until now."""


@dataclass
class _Work:
    """One request's part of a pass."""

    request: str
    tables: list[np.ndarray]
    first: int
    right: np.ndarray
    """Digests of all tokens up to the end of the part."""
    older: list[np.ndarray]
    """Those with the weights of which the engine's cache may still hold some."""
    samples: bool


def salt_of(request_id: str) -> int:
    """Two requests with the same prompt answer differently."""
    return zlib.crc32(request_id.encode())


class ModelRunner:
    """One engine's model on all its ranks; executes passes in order."""

    def __init__(
        self,
        name: str,
        vllm_config: Any,
        ranks: Sequence[Rank],
        layers: Sequence[LayerGroup],
        report: Callable[[str, str], None],
        meanwhile: Callable[[str], None],
    ) -> None:
        self._name = name
        self._config = vllm_config
        self._ranks = ranks
        self._layers = layers
        self._report = report
        self._meanwhile = meanwhile
        self._requests: dict[str, RunningRequest] = {}
        self.beside: dict[str, Beside] = {}
        """Of requests that have more than tokens."""
        self.computed: Counter[str] = Counter()
        """How many tokens of each request."""
        self.weights = [""]
        """The names of the weights that it has had since its cache was empty, the present ones last."""
        self.passes = 0
        self.pages_checked = 0

    def execute(self, output: Any) -> list[ModelRunnerOutput]:
        """What each rank answers; only the first one samples."""
        metas = [pickle.loads(pickle.dumps(output.kv_connector_metadata)) for _ in self._ranks]
        for rank, meta in zip(self._ranks, metas, strict=True):
            rank.connector.handle_preemptions(meta)
        work = self._update(output)
        answers, tokens = [], dict[str, list[int]]()
        with set_forward_context(None, self._config), contextlib.ExitStack() as passes:
            reports = []
            for rank, meta in zip(self._ranks, metas, strict=True):
                kv_transfer_state._KV_CONNECTOR_AGENT = rank.connector
                output.kv_connector_metadata = meta
                lifecycle = KVConnectorModelRunnerMixin._get_kv_connector_output(output)
                reports.append(passes.enter_context(lifecycle))
            if work:
                self.passes += 1
                self._meanwhile("begun")
                for layer in range(len(LAYERS)):
                    self._compute(layer, work)
                    self._meanwhile("layer")
                tokens = {each.request: self._sample(each) for each in work}
        for report in reports:
            report.kv_connector_worker_meta = pickle.loads(pickle.dumps(report.kv_connector_worker_meta))
            answers.append(
                ModelRunnerOutput(
                    req_ids=list(tokens),
                    req_id_to_index={request: index for index, request in enumerate(tokens)},
                    sampled_token_ids=list(tokens.values()),
                    kv_connector_output=report,
                )
            )
        return answers

    # ---- the batch

    def _update(self, output: Any) -> list[_Work]:
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
        for new in output.scheduled_new_reqs:
            prompt = list(new.prompt_token_ids)
            beside = self.beside.get(new.req_id, TOKENS_ONLY)
            assert (new.lora_request.lora_name if new.lora_request else "") == beside.lora
            assert len(new.mm_features or ()) == len(beside.images)
            request = RunningRequest(
                prompt, len(prompt), beside, [list(ids) for ids in new.block_ids], new.num_computed_tokens, len(prompt)
            )
            self._requests[new.req_id] = request
        cached = output.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            request = self._requests[request_id]
            blocks = cached.new_block_ids[index]
            if request_id in cached.resumed_req_ids:
                request.tables = [list(ids) for ids in blocks]
            elif blocks is not None:
                for table, ids in zip(request.tables, blocks, strict=True):
                    table += ids
            request.computed = cached.num_computed_tokens[index]
            request.known = request.prompt_tokens + cached.num_output_tokens[index]
        return [self._work(request_id, count) for request_id, count in output.num_scheduled_tokens.items()]

    def _work(self, request_id: str, count: int) -> _Work:
        request = self._requests[request_id]
        end = request.computed + count
        self.computed[request_id] += count
        assert end <= len(request.tokens), f"{request_id}: token {end} of {len(request.tokens)} is to be computed"
        paged = {group.index for group in self._layers if not group.state}
        least = min(len(request.tables[index]) for index in paged)
        assert -(-end // BLOCK_TOKENS) <= least, f"{request_id}: {least} blocks for {end}"
        tables = [np.asarray(table, dtype=np.int64) for table in request.tables]
        *older, right = self.digests(request.tokens[:end], request.beside)
        return _Work(request_id, tables, request.computed, right, older, end >= request.known)

    def digests(self, tokens: Sequence[int], beside: Beside) -> list[np.ndarray]:
        """Those of tokens with each of the weights of which something may be in the cache, the present ones last."""
        return [digests(tokens, beside, each) for each in self.weights]

    # ---- a layer

    def _compute(self, layer: int, work: Sequence[_Work]) -> None:
        """A layer on all ranks: as the attention layer does, hooks around it only while the connector wants them."""
        name = LAYERS[layer]
        if self._layers[layer].state:
            self._advance_states(layer, work)
            return
        hooked = [rank for rank in self._ranks if rank.connector.has_connector_metadata()]
        for rank in hooked:
            rank.connector.wait_for_layer_load(name)
        for rank in self._ranks:
            for each in work:
                blocks = each.tables[self._layers[layer].index]
                rank.pages.write(layer, blocks, each.first, each.right[each.first :])
            for each in work:
                self._check(rank, layer, each)
        for rank in hooked:
            rank.connector.save_kv_layer(name, rank.pages.tensors[name], None)

    def _advance_states(self, layer: int, work: Sequence[_Work]) -> None:
        """A layer for which vLLM calls no hooks."""
        for rank in self._ranks:
            for each in work:
                slot = int(each.tables[self._layers[layer].index][0])
                self.pages_checked += 1
                if each.first and not rank.pages.holds_state(layer, slot, int(each.right[each.first - 1])):
                    self._report(
                        "wrong page",
                        f"{self._name} reads for request {each.request} the state before token {each.first}, layer"
                        f" {layer}, slot {slot}: {rank.pages.describe(layer, slot, 0)}, which is that of other tokens",
                    )
                rank.pages.write_state(layer, slot, int(each.right[-1]))

    def _check(self, rank: Rank, layer: int, work: _Work) -> None:
        group = self._layers[layer]
        blocks, first = work.tables[group.index], group.first_read(work.first)
        self.pages_checked += -(-len(work.right) // BLOCK_TOKENS) - first // BLOCK_TOKENS
        wrong = rank.pages.wrong_at(layer, blocks, first, work.right, work.older)
        if wrong is None:
            return
        block, offset = int(blocks[wrong // BLOCK_TOKENS]), wrong % BLOCK_TOKENS
        self._report(
            "wrong page",
            f"{self._name} reads for request {work.request} at token {wrong} of {len(work.right)}, layer {layer}, page"
            f" {block}: {rank.pages.describe(layer, block, offset)}, which is not the KV of its tokens",
        )

    def _sample(self, work: _Work) -> list[int]:
        """The next token, from what the pages of the last layer say; nothing in the middle of a prompt."""
        if not work.samples:
            return []
        request, end = self._requests[work.request], len(work.right)
        layer = max(layer for layer, group in enumerate(self._layers) if not group.state)
        blocks = work.tables[self._layers[layer].index]
        block, offset = int(blocks[(end - 1) // BLOCK_TOKENS]), (end - 1) % BLOCK_TOKENS
        token = next_token(self._ranks[0].pages.digest_at(layer, block, offset), salt_of(work.request))
        if end == len(request.tokens):
            request.tokens.append(token)
        return [token]
