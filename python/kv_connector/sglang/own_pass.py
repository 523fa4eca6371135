"""One forward pass of SGLang's model over the beginning of a prompt, into pages that no request has.

Used by the scheduler's thread only, between two batches. Every tensor-parallel rank must run it for the same tokens,
because the model's layers exchange data. It touches no request, no cache of prefixes and no relayed token: the batch is
given to the model alone, nothing is sampled, and its pages, row and state go back when it ends.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

_REQUEST = "kv-messenger-own-pass"


class NoRoomError(Exception):
    """The pools have no free pages or rows for a pass at this moment."""


class OwnPass:
    """A pass that has its pages; ``release`` gives them back, whatever happened to it."""

    def __init__(self, scheduler: Any, tokens: Sequence[int], lora_id: str | None) -> None:
        """Takes the pages; raises NoRoomError, or anything else, without holding any then."""
        self._scheduler = scheduler
        self.token_count = len(tokens)
        _require_room(scheduler, self.token_count)
        self._request = _request(scheduler, tokens, lora_id)
        self._batch: Any = None
        try:
            self._batch = _batch(scheduler, self._request)
            self._batch.prepare_for_extend()
        except BaseException:
            self.release()
            raise

    @property
    def row(self) -> int:
        """The row of SGLang's table of requests in which the pass's slots are."""
        return int(self._request.kv.req_pool_idx)

    def run(self) -> None:
        """Queues the pass on the stream of forward passes. What follows in ``on_stream`` sees its results."""
        from sglang.srt.managers.overlap_utils import resolve_forward_inputs

        resolve_forward_inputs(self._batch, self._scheduler.future_map)
        self._scheduler.tp_worker.forward_batch_generation(self._batch, is_verify=True)  # samples nothing

    def release(self) -> None:
        """Gives back all that the pass holds; a second call does nothing."""
        request, allocator = self._request, self._scheduler.token_to_kv_pool_allocator
        pool = self._scheduler.req_to_token_pool
        batch, self._batch = self._batch, None
        slots = getattr(batch, "out_cache_loc", None)
        if slots is None and request.kv.holds_kv:  # SGLang has failed behind the allocation
            slots = pool.req_to_token[self.row, : request.kv.kv_allocated_len].long()
        if slots is not None and len(slots):
            allocator.free(slots)
        if request.kv.holds_mamba:
            pool.free_mamba_cache(request)
        if request.kv.holds_kv:
            pool.free(request)


@contextlib.contextmanager
def on_stream(scheduler: Any) -> Iterator[None]:
    """Work inside runs on the stream of forward passes, alone: before and after it the host waits for the device.

    So buffers that passes share, also pinned ones from which a device still copies, are free.
    """
    if not scheduler.enable_overlap:
        yield
        return
    _wait_for(scheduler.forward_stream)
    with scheduler.forward_stream_ctx:
        scheduler.forward_stream.wait_stream(scheduler.schedule_stream)
        try:
            yield
        finally:
            _wait_for(scheduler.forward_stream)


def _wait_for(stream: Any) -> None:
    if hasattr(stream, "synchronize"):  # that of a CPU has nothing to wait for
        stream.synchronize()


def unsafe(scheduler: Any, server_args: Any) -> str:
    """Why no pass may be put between an engine's batches; "" if it may. Equal on all ranks."""
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()
    asked = {
        "--enable-dp-attention": parallel.attn_dp_size > 1,
        "--pp-size": parallel.pp_size > 1,
        "--moe-a2a-backend": server_args.moe_a2a_backend not in (None, "none"),
        "--speculative-algorithm": not scheduler.spec_algorithm.is_none(),
        "--enable-hisparse": bool(scheduler.enable_hisparse),
        "--enable-hierarchical-cache": bool(scheduler.enable_decode_hicache),
        "--dllm-algorithm": server_args.dllm_algorithm is not None,
        "--enable-lora-overlap-loading": bool(server_args.enable_lora_overlap_loading),
        "--enable-pdmux": bool(server_args.enable_pdmux),
        "--enable-two-batch-overlap": bool(server_args.enable_two_batch_overlap),
        "--elastic-ep-backend": server_args.elastic_ep_backend is not None,
    }
    if found := [option for option, is_asked in asked.items() if is_asked]:
        return f"{found[0]} is set"
    if not scheduler.is_generation or scheduler.model_config.is_encoder_decoder:
        return "the model is not a decoder alone"
    return ""


def _require_room(scheduler: Any, token_count: int) -> None:
    allocator, pool = scheduler.token_to_kv_pool_allocator, scheduler.req_to_token_pool
    page_tokens = int(allocator.page_size)
    needed = -(-token_count // page_tokens) * page_tokens
    if allocator.available_size() < needed:
        raise NoRoomError(f"{allocator.available_size()} tokens are free, {needed} are needed")
    if pool.available_size() < 1:
        raise NoRoomError("no row for a request is free")


def _request(scheduler: Any, tokens: Sequence[int], lora_id: str | None) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
    sampling.normalize(None)
    request = Req(
        _REQUEST,
        "",
        array("q", tokens),
        sampling,
        lora_id=lora_id,
        vocab_size=scheduler.model_config.vocab_size,
    )
    request.refresh_fill_ids()
    request.prefix_len, request.extend_end = 0, len(tokens)
    request.logprob_start_len = -1
    return request


def give_back(own: OwnPass | None, logger: logging.Logger) -> None:
    """Gives back what the pass holds, if there is one; a failure is logged, since the scheduler goes on."""
    try:
        if own is not None:
            own.release()
    except Exception:
        logger.exception("an own pass could not give its pages back")


def _batch(scheduler: Any, request: Any) -> Any:
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    return ScheduleBatch.init_new(
        [request],
        scheduler.req_to_token_pool,
        scheduler.token_to_kv_pool_allocator,
        scheduler.tree_cache,
        scheduler.model_config,
        scheduler.enable_overlap,
        scheduler.spec_algorithm,
    )
