"""Registers the backend with SGLang, through its public list of choices and its plugin hooks.

Twelve hooks must be installed before it is known which backend a process uses, and each checks that itself; the others
are installed when this backend is requested. Nothing is started here: the JVM starts with the endpoint, in the
scheduler's process. SGLang only logs an exception of a plugin, so compatibility is checked when the backend is
requested, where an exception ends the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import kv_connector_door
from kv_connector.sglang import (
    BACKEND_NAME,
    layerwise,
    loaded_adapters,
    page_shares,
    pair_check,
    state_tensors,
    weight_changes,
    weight_hooks,
)

logger = logging.getLogger("sglang.srt.kv_messenger")

_LOAD_MODEL = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_ALLOCATE_POOLS = "sglang.srt.model_executor.model_runner.ModelRunner.alloc_memory_pool"
_ALLOCATE_METADATA = "sglang.srt.disaggregation.utils.MetadataBuffers.__init__"
_DESCRIBE_STATE = "sglang.srt.mem_cache.memory_pool.MambaPool.get_contiguous_buf_infos"
_TRANSFER_QUEUE = "sglang.srt.disaggregation.decode.DecodeTransferQueue.__init__"
_PREFILL_QUEUE = "sglang.srt.disaggregation.prefill.PrefillBootstrapQueue"
_RECEIVED = "sglang.srt.disaggregation.decode.SchedulerDisaggregationDecodeMixin._verify_kv_checksums"
_ROUTED_BY_ROOM = "sglang.srt.managers.data_parallel_controller.DataParallelController.follow_bootstrap_room_scheduler"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_FLUSH = f"{_SCHEDULER}.flush_cache"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver"
_DECODE_QUEUE = "sglang.srt.disaggregation.decode.DecodePreallocQueue"
_BEGINS_A_PROCESS = ("manager", "bootstrap_server")
"""The classes that SGLang asks for once in each process, before any other; it asks for the others with each request."""


def register_backend() -> None:
    """Adds the choice, the enum's member and the classes. A second call does nothing."""
    from sglang.srt.arg_groups import choices
    from sglang.srt.disaggregation import utils
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    kv_connector_door.add_choice(choices)
    _pass_list_of_sharding()
    looked_up = f"{utils.__name__}.get_kv_class"
    if any(hook is kv_class for _kind, hook, _source in HookRegistry._hooks[looked_up]):
        return
    backends = kv_connector_door.backends_with_this(utils)
    if backends is not utils.TransferBackend:
        HookRegistry.register(f"{utils.__name__}.TransferBackend", backends, HookType.REPLACE)
    HookRegistry.register(looked_up, kv_class, HookType.AROUND)
    for allocating in (_ALLOCATE_POOLS, _ALLOCATE_METADATA):
        HookRegistry.register(allocating, allocate_shared, HookType.AROUND)
    HookRegistry.register(_ALLOCATE_POOLS, layerwise.count_into_graphs, HookType.AFTER)
    HookRegistry.register(_LOAD_MODEL, layerwise.install_hooks, HookType.AFTER)
    HookRegistry.register(_TRANSFER_QUEUE, never_release_by_time, HookType.AFTER)
    HookRegistry.register(_DESCRIBE_STATE, state_tensors.note_tensors, HookType.AFTER)
    HookRegistry.register(_ROUTED_BY_ROOM, route_without_room, HookType.AROUND)
    HookRegistry.register(_FLUSH, flush_cache, HookType.AROUND)
    HookRegistry.register(weight_hooks.ANNOUNCES, weight_hooks.WEIGHTS.answer, HookType.AROUND)
    HookRegistry.register(weight_hooks.LOADS, weight_hooks.WEIGHTS.load, HookType.AROUND)
    HookRegistry.register(loaded_adapters.FROM_FILES, loaded_adapters.ADAPTERS.note_files, HookType.AROUND)
    HookRegistry.register(loaded_adapters.FROM_TENSORS, loaded_adapters.ADAPTERS.note_tensors, HookType.AROUND)


def _pass_list_of_sharding() -> None:
    """Wraps the step of SGLang's arguments that lists the backends with which it divides pages among ranks.

    Where that step has moved, SGLang refuses the option with this backend, and all else starts.
    """
    try:
        from sglang.srt.arg_groups import resolution_hooks

        if page_shares.pass_list not in resolution_hooks._HOOKS.get(page_shares.STEP, []):
            resolution_hooks.register_resolution_hook(page_shares.STEP)(page_shares.pass_list)
    except (ImportError, AttributeError, ValueError) as moved:
        logger.debug("%s is left to SGLang: %s", page_shares.OPTION, moved)


def hook_scheduler() -> None:
    """Installs the hooks of a scheduler that uses this backend; others run without them."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from kv_connector.sglang import decoder_stages, hooks, misfits, rank_decisions, recomputes, sglang_api

    by_target = {
        f"{_RECEIVER}._broadcast_reqs_across_ranks": (rank_decisions.DECISIONS.broadcast, HookType.AROUND),
        f"{_SCHEDULER}.run_batch": (hooks.run_batch, HookType.AROUND),
        f"{_PREFILL_QUEUE}.pop_bootstrapped": (hooks.poll_queued, HookType.BEFORE),
        f"{_DECODE_QUEUE}.pop_preallocated": (hooks.poll_pulls, HookType.BEFORE),
        f"{_SCHEDULER}.is_fully_idle": (hooks.is_fully_idle, HookType.AROUND),
        f"{_PREFILL_QUEUE}.create_sender": (hooks.name_sender, HookType.BEFORE),
        f"{_PREFILL_QUEUE}.release_memory_occupation": (hooks.abort_queued, HookType.BEFORE),
        f"{_DECODE_QUEUE}.add": (hooks.check_host, HookType.BEFORE),
        f"{_DECODE_QUEUE}._create_receiver_and_enqueue": (hooks.name_new_receiver, HookType.AFTER),
        f"{_DECODE_QUEUE}._send_kv_metadata": (hooks.name_receiver, HookType.BEFORE),
        _RECEIVED: (pair_check.compare_received, HookType.AROUND),
        recomputes.ASKS: (recomputes.ask_again, HookType.AROUND),
        decoder_stages.ENDED: (decoder_stages.lowest_states, HookType.AROUND),
        decoder_stages.RELEASE: (decoder_stages.end_alike, HookType.AROUND),
        **dict.fromkeys(weight_changes.SOURCES, (weight_changes.note_update, HookType.AROUND)),
        weight_changes.RELEASE: (weight_changes.note_release, HookType.AFTER),
        weight_changes.END_OF_UPDATE: (weight_changes.note_end, HookType.AROUND),
    }
    further = [
        (weight_changes.RELEASE, (hooks.end_pulls_of, HookType.BEFORE)),
        (f"{_PREFILL_QUEUE}.create_sender", (hooks.leave_unclaimed, HookType.AFTER)),
        (f"{_PREFILL_QUEUE}.create_sender", (hooks.note_weights, HookType.AFTER)),
        (f"{_PREFILL_QUEUE}.add", (misfits.turn_away_sending, HookType.BEFORE)),
        (f"{_DECODE_QUEUE}.add", (misfits.turn_away_receiving, HookType.BEFORE)),
        (f"{_PREFILL_QUEUE}.create_sender", (misfits.refuse_sending, HookType.AFTER)),
        (f"{_DECODE_QUEUE}._create_receiver_and_enqueue", (misfits.refuse_receiving, HookType.AFTER)),
        (f"{_PREFILL_QUEUE}.pop_bootstrapped", (hooks.name_queued, HookType.BEFORE)),
        (f"{_DECODE_QUEUE}._update_handshake_waiters", (misfits.answer_mistakes, HookType.AFTER)),
    ]
    for target, (hook, kind) in [*by_target.items(), *further]:
        if all(known is not hook for _kind, known, _source in HookRegistry._hooks[target]):
            HookRegistry.register(target, hook, kind)
            if target in HookRegistry._patched:  # SGLang skips a target that another plugin has patched
                HookRegistry._apply_target(target, [(kind, hook, None)])
    HookRegistry.apply_hooks()
    sglang_api.require_hooked(
        (
            *(_LOAD_MODEL, _ALLOCATE_POOLS, _ALLOCATE_METADATA, _TRANSFER_QUEUE, _DESCRIBE_STATE, _FLUSH),
            *(loaded_adapters.FROM_FILES, loaded_adapters.FROM_TENSORS, _ROUTED_BY_ROOM),
            *by_target,
            *dict(further),
        )
    )


def allocate_shared(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Wraps the allocation of SGLang's pools and metadata; torch is loaded by then."""
    from kv_connector.sglang import shared_memory

    return shared_memory.allocate_shared(original, *args, **named)


def flush_cache(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """Wraps ``Scheduler.flush_cache``, to which SGLang keeps references from before a backend is requested."""
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_transfer_backend != BACKEND_NAME:
        return original(scheduler, *args, **named)
    from kv_connector.sglang import hooks

    return hooks.flush_cache(original, scheduler, *args, **named)


def kv_class(original: Callable[..., Any], transfer_backend: Any, class_type: Any) -> Any:
    """This backend's class of the given type; calls ``original`` for other backends.

    SGLang's interface is checked once in a process: it reads sources, which takes 0.1 s, and SGLang asks for a class
    with each request, on the scheduler's thread.
    """
    if transfer_backend.value != BACKEND_NAME or class_type.value == "kvargs":
        return original(transfer_backend, class_type)
    from kv_connector.sglang import sglang_api

    if class_type.value in _BEGINS_A_PROCESS:
        sglang_api.check()
    if class_type.value == "manager":
        hook_scheduler()
    from kv_connector.sglang.endpoint import TransferEndpoint
    from kv_connector.sglang.receiver import Receiver
    from kv_connector.sglang.sender import Sender

    return {
        "manager": TransferEndpoint,
        "sender": Sender,
        "receiver": Receiver,
        "bootstrap_server": sglang_api.CommonKVBootstrapServer,
    }[class_type.value]


def route_without_room(original: Callable[..., Any], controller: Any, request: Any) -> Any:
    """Wraps how SGLang's data-parallel controller finds the rank of a room; a request without one would end it.

    Any rank may have that request, because each of them refuses it with the reason.
    """
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_transfer_backend != BACKEND_NAME or isinstance(request.bootstrap_room, int):
        return original(controller, request)
    return controller.round_robin_scheduler(request)


def never_release_by_time(_result: None, queue: Any, *_args: Any, **_kwargs: Any) -> None:
    """Keeps pages of an aborted transfer until there is proof that nothing writes to them, however long that takes.

    SGLang would release them after ``SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT`` and give them to
    another request while the prefiller may still write to them.
    """
    from sglang.srt.runtime_context import get_disagg

    if get_disagg().disaggregation_transfer_backend != BACKEND_NAME:
        return
    if not hasattr(queue, "deferred_kv_release_timeout"):
        raise AssertionError("SGLang's DecodeTransferQueue has no deferred_kv_release_timeout any more")
    logger.info(
        "pages of an aborted request stay held until nothing can write to them;"
        " SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE_TIMEOUT (%s s) does not apply",
        queue.deferred_kv_release_timeout,
    )
    queue.deferred_kv_release_timeout = float("inf")
