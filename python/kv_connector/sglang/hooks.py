"""What SGLang's scheduler calls of this backend beside its classes; each wraps, precedes or follows a method of SGLang.

Imported once this backend is requested. Used by the scheduler's thread only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kv_connector.sglang import weight_changes
from kv_connector.sglang.client_fields import NO_HOST, NO_ROOM, room_fault
from kv_connector.sglang.endpoint import TransferEndpoint
from kv_connector.sglang.exchange import PlannedChunk
from kv_connector.sglang.first_pass import run_checked
from kv_connector.sglang.loaded_adapters import ADAPTERS
from kv_connector.sglang.page_numbers import Copied, PageNumbers
from kv_connector.sglang.pair_check import bind
from kv_connector.sglang.prefix_pulls import PrefixPulls
from kv_connector.sglang.prompt_name import digest_of, length_of
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.reported_step import ComingChunks
from kv_connector.sglang.sender import Sender
from kv_connector.sglang.twins import Computed, Twins


def run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **named: Any) -> Any:
    """Wraps ``Scheduler.run_batch``: the batch has its pages and is computed next."""
    weight_changes.CACHED.filled()
    with _before_pass(scheduler):
        if batch.forward_mode.is_extend():
            _name_anew(scheduler, batch.reqs)
        pulls = _pulls_of(scheduler)
        if pulls is None or not batch.forward_mode.is_extend():
            return _run_batch(original, scheduler, batch, *more, **named)
        for request in batch.reqs:
            if isinstance(request.disagg_kv_sender, Sender):
                request.disagg_kv_sender.leave_pull()
        tokens = int(batch.extend_num_tokens or 0)
        return pulls.passes.run(tokens, lambda: _run_batch(original, scheduler, batch, *more, **named))


def _before_pass(scheduler: Any) -> AbstractContextManager[Any]:
    """While a prefiller's pass is queued, page numbers are not waited for if the one before may still run."""
    numbers: PageNumbers | None = getattr(_endpoint_that_prefills(scheduler), "page_numbers", None)
    return contextlib.nullcontext() if numbers is None else numbers.before_pass(overlaps=scheduler.enable_overlap)


def _endpoint_that_prefills(scheduler: Any) -> Any:
    return getattr(getattr(scheduler, "disagg_prefill_bootstrap_queue", None), "kv_manager", None)


def _run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *more: Any, **named: Any) -> Any:
    steps = getattr(_endpoint_that_prefills(scheduler), "steps", None)
    if steps is None:
        return original(scheduler, batch, *more, **named)
    plan = lambda: _plan(scheduler, batch, steps.twins, steps.page_numbers)  # noqa: E731
    forward = lambda: original(scheduler, batch, *more, **named)  # noqa: E731
    first_pass = steps.first_pass
    if first_pass is None:
        return steps.run(plan, forward)

    def on_stream() -> AbstractContextManager[Any]:
        if not scheduler.enable_overlap:
            return contextlib.nullcontext()
        return scheduler.device_module.stream(scheduler.forward_stream)  # type: ignore[no-any-return]

    if first_pass.is_right:
        return steps.run(plan, forward, on_stream)
    if batch.forward_mode.is_extend():
        return run_checked(first_pass, forward, on_stream)
    return original(scheduler, batch, *more, **named)


def _plan(scheduler: Any, batch: Any, twins: Twins, page_numbers: PageNumbers) -> Sequence[PlannedChunk] | ComingChunks:
    """Plans a chunk for each request of the batch that is being sent, or has it planned when its numbers are here."""
    if not batch.forward_mode.is_extend():
        return []
    if scheduler.tree_cache.supports_prefix_sharing():
        twins.leave_to_send([_computed(request) for request in batch.reqs])
    parts = [part for part in (_part(scheduler, request) for request in batch.reqs) if part is not None]
    if not parts:
        return []
    copied = page_numbers.copy([part.row for part in parts])
    if copied.event is None:
        return _chunks(parts, copied)
    return ComingChunks(copied.event, lambda: _chunks(parts, copied))


def _chunks(parts: Sequence[_Part], copied: Copied) -> list[PlannedChunk]:
    chunks = [part.chunk(pages) for part, pages in zip(parts, copied.take(), strict=True)]
    return [chunk for chunk in chunks if chunk is not None]


@dataclass(frozen=True, slots=True)
class _Part:
    """One request's part of a pass, as it is when the pass is queued: SGLang's request goes on meanwhile."""

    sender: Sender
    end_token: int
    prompt_tokens: int
    first_page: int
    row: Any
    """SGLang's numbers of the pages from the first on."""

    def chunk(self, pages: Sequence[int]) -> PlannedChunk | None:
        """What leaves early, as far as that is known when the numbers of the row are here."""
        return self.sender.plan(
            self.end_token,
            self.prompt_tokens,
            lambda first, end: list(pages[first - self.first_page : end - self.first_page]),
        )


def _part(scheduler: Any, request: Any) -> _Part | None:
    sender = request.disagg_kv_sender
    if not isinstance(sender, Sender) or request.pending_bootstrap:
        return None
    end_token, prompt_tokens = request.extend_end, len(request.origin_input_ids)
    unplanned = sender.unplanned(end_token, prompt_tokens)
    if unplanned is None:
        return None
    first_page, end_page = unplanned
    page_tokens = sender.kv_mgr.kv_args.page_size
    row = scheduler.req_to_token_pool.req_to_token[request.kv.req_pool_idx]
    tokens = row[first_page * page_tokens : min(end_page * page_tokens, end_token) : page_tokens]
    pages = scheduler.token_to_kv_pool_allocator.translate_kv_indices_for_transfer(tokens) // page_tokens
    return _Part(sender, end_token, prompt_tokens, first_page, pages)


class _Unsent:
    """Stands for the sender of a request that this backend does not send, such as SGLang's warm-up."""

    def leave_to_send(self) -> None:
        """Does nothing: the request is not sent from here."""


def _computed(request: Any) -> Computed:
    sender = request.disagg_kv_sender
    return Computed(
        tokens=request.origin_input_ids,
        namespace=(request.extra_key, request.cache_salt),
        first_token=request.prefix_len,
        end_token=request.extend_end,
        match_limit=request._compute_max_prefix_len(len(request.origin_input_ids)),
        owner=sender if isinstance(sender, Sender) else _Unsent(),
    )


def name_sender(queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.create_sender``, which passes only the room of the request to the sender."""
    if isinstance(queue.kv_manager, TransferEndpoint):
        queue.kv_manager.next_prompt_digest = _digest_in(queue.scheduler, request)
        queue.kv_manager.next_prompt_tokens = length_of(request)
        pulls = queue.kv_manager.prefix_pulls
        queue.kv_manager.next_pull = pulls.queued(request) if pulls is not None else None


def leave_unclaimed(_result: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``PrefillBootstrapQueue.create_sender``: a request that was refused, or has no decoder, has no use for
    its pull."""
    if isinstance(queue.kv_manager, TransferEndpoint) and (pull := queue.kv_manager.take_pull()) is not None:
        pull.leave()


def note_weights(_result: Any, _queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``PrefillBootstrapQueue.create_sender``: by which weights the prompt is named."""
    if isinstance(request.disagg_kv_sender, Sender):
        request.disagg_kv_sender.weights = weight_changes.name()


def name_queued(queue: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.pop_bootstrapped``: what waits for its decoder has the name of now."""
    if queue.queue:
        _name_anew(queue.scheduler, queue.queue)


def _name_anew(scheduler: Any, requests: Sequence[Any]) -> None:
    """Names prompts anew that were queued before the engine was given other weights, which compute them now."""
    name = weight_changes.name()
    for request in requests:
        sender = request.disagg_kv_sender
        if isinstance(sender, Sender) and sender.weights != name:
            sender.rename(_digest_in(scheduler, request), name)


def check_host(_queue: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``DecodePreallocQueue.add``: SGLang joins host and port at once, and a host that is no text ends it.

    It joins them again while the request waits, so the request itself is corrected; its receiver refuses it.
    """
    if not isinstance(request.bootstrap_host, str):
        request.bootstrap_host = NO_HOST


def name_new_receiver(waiting: Any, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after ``DecodePreallocQueue._create_receiver_and_enqueue``: a decline needs a digest too.

    A room that was refused is replaced: SGLang goes on to compute with it until it sees that the receiver has failed.
    """
    _name(queue, waiting)
    if isinstance(waiting.kv_receiver, Receiver) and room_fault(waiting.req.bootstrap_room):
        waiting.req.bootstrap_room = NO_ROOM


def name_receiver(queue: Any, waiting: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before ``DecodePreallocQueue._send_kv_metadata``: a paused decoder may need more tokens by now."""
    _name(queue, waiting)
    if isinstance(waiting.kv_receiver, Receiver):
        waiting.kv_receiver.request_row = int(waiting.req.kv.req_pool_idx)


def _name(queue: Any, waiting: Any) -> None:
    if isinstance(waiting.kv_receiver, Receiver):
        waiting.kv_receiver.digest_now = lambda: _digest_in(queue.scheduler, waiting.req)
        waiting.kv_receiver.prompt_digest = waiting.kv_receiver.digest_now()
        waiting.kv_receiver.prompt_tokens = length_of(waiting.req)
        waiting.kv_receiver.arrival.adapter = _adapter(queue.scheduler, waiting.req.lora_id)
        bind(waiting.req, waiting.kv_receiver.arrival)


def _digest_in(scheduler: Any, request: Any) -> str:
    return digest_of(
        request,
        adapter=_adapter(scheduler, request.lora_id),
        weights=weight_changes.name(),
        contents_alike=request.multimodal_inputs is None or _contents_are_alike(),
    )


def _contents_are_alike() -> bool:
    """Whether both sides have equal hashes of equal images.

    SGLang hashes the output of an image's processor. Processors on two kinds of GPUs may round differently; those on
    CPUs give equal results. With SGLANG_MM_SKIP_COMPUTE_HASH the hashes are random numbers.
    """
    from sglang.srt.environ import envs
    from sglang.srt.runtime_context import get_device

    return get_device().device == "cpu" and not envs.SGLANG_MM_SKIP_COMPUTE_HASH.get()


def _adapter(scheduler: Any, lora_id: str | None) -> str:
    """The adapter's identity by its contents: each server gives adapters ids of its own."""
    return ADAPTERS.identity(scheduler.tp_worker.model_runner.lora_manager, lora_id) if lora_id else ""


def poll_pulls(queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before the methods with which both kinds of engines begin a round: what pulls need is done.

    So are declines of requests that ended before their prefillers were found.
    """
    endpoint = getattr(queue, "kv_manager", None)
    if not isinstance(endpoint, TransferEndpoint):
        return
    endpoint.prefillers.late_declines.poll()
    pulls = endpoint.pulls_in(queue.scheduler)
    if pulls is not None:
        pulls.poll()


def is_fully_idle(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> bool:
    """Wraps ``Scheduler.is_fully_idle``: an engine whose pages pulls hold is not idle.

    SGLang takes pages that neither a request nor its cache has for lost, and empties all of its pools when it is idle.
    A health check is about requests only.
    """
    idle = bool(original(scheduler, *args, **kwargs))
    if not idle or kwargs.get("for_health_check") or (args and args[0]):
        return idle
    pulls = _pulls_of(scheduler)
    return pulls is None or not pulls.holds()


def flush_cache(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps ``Scheduler.flush_cache``: what is pulled and offered ends before, as far as it can."""
    end_pulls(scheduler)
    flushed = original(scheduler, *args, **kwargs)
    if flushed:
        weight_changes.CACHED.emptied()
    return flushed


def end_pulls(scheduler: Any) -> None:
    """Ends what is pulled and offered, if that alone keeps the engine from being idle: else its cache stays anyway."""
    pulls = _pulls_of(scheduler)
    if pulls is None:
        return
    with pulls.overlooked():
        idle = scheduler.is_fully_idle(ignore_waiting=scheduler._engine_paused)
    if idle:
        pulls.let_go()


def end_pulls_of(updater: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs before SGLang gives memory back, for which it ends its process unless it is idle."""
    end_pulls(updater.scheduler)


def _pulls_of(scheduler: Any) -> PrefixPulls | None:
    for name in ("disagg_prefill_bootstrap_queue", "disagg_decode_prealloc_queue"):
        endpoint = getattr(getattr(scheduler, name, None), "kv_manager", None)
        if isinstance(endpoint, TransferEndpoint):
            return endpoint.prefix_pulls
    return None


def poll_queued(queue: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.pop_bootstrapped``: reports the state of each request to the first stage.

    It begins a prefiller's round, so page numbers that have come meanwhile are seen here too.

    The first stage decides for all when a queued request is computed, by the states that the others have put into a
    store. SGLang never polls what is queued on these: its own backends receive grants on their own threads.
    """
    endpoint = getattr(queue, "kv_manager", None)
    if isinstance(endpoint, TransferEndpoint):
        endpoint.page_numbers.look()
    poll_pulls(queue)
    if queue.pp_rank == 0:
        return
    for request in queue.queue:
        if isinstance(request.disagg_kv_sender, Sender):
            request.disagg_kv_sender.poll()


def abort_queued(queue: Any) -> None:
    """Runs before ``PrefillBootstrapQueue.release_memory_occupation``, which silently drops queued requests."""
    for request in queue.queue:
        if isinstance(request.disagg_kv_sender, Sender):
            request.disagg_kv_sender.abort()
