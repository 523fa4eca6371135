"""Follows changes of a running scheduler's weights, by the results of SGLang's updater. Needs no import of SGLang.

Used by the scheduler's thread only. SGLang 0.5.23 reports only that a change failed. A model whose tensors were being
sent is then partly changed, and one that was loading files "rolls back" to the new files, because SGLang records their
folder before it loads them. So the weights are unknown after a failure, unless the message implies that the model was
not touched.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from kv_connector.naming.cached_weights import CachedWeights
from kv_connector.naming.changed_weights import ChangedWeights
from kv_connector.naming.weights_digest import digest_of_weights

logger = logging.getLogger("sglang.srt.kv_messenger")

UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SOURCES = tuple(f"{UPDATER}.update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc"))
RELEASE = f"{UPDATER}.release_memory_occupation"
END_OF_UPDATE = f"{UPDATER}.end_weight_update"
UNNAMED_VERSION = "default"
"""SGLang's version of weights to which none was given."""
NOT_FLUSHED = "Weights were updated"
"""The beginning of SGLang's message if only the flush of its cache failed, after the weights were changed."""
_UNTOUCHED = (
    "update_weights_from_distributed must run between",
    "update_weights_from_tensor must run between",
    "Failed to receive weights",
    "Failed to get model loader",
    "Failed to get weights iterator",
    "Online weight updates are not supported",
)
"""The beginnings of SGLang's messages for failures before the model is touched."""
_DRAFT = "draft"
"""SGLang's selector for a change of the draft's weights only, on which no answer depends."""
_OWN_WORD = uuid.uuid4().hex
"""A name that no other engine has."""
WEIGHTS = ChangedWeights()
"""The weights of this process's scheduler."""
CACHED = CachedWeights()
"""Of what weights the KV in its prefix cache is."""


def note_update(original: Callable[..., Any], updater: Any, update: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps SGLang's methods that change a running scheduler's weights: prompt digests name the current ones."""
    from kv_connector.weights.routes import SGLANG_LOADER

    result = original(updater, update, *args, **kwargs)
    if getattr(update, "selector", "") == _DRAFT:
        return result
    if getattr(update, "load_format", None) == SGLANG_LOADER:
        if result.success:
            CACHED.changed()  # and the load has named them
        return result  # else nothing was touched: a scheduler that has loaded a part ends (``weights``)
    alone = updater.draft_worker is None
    if result.success or (alone and result.message.startswith(NOT_FLUSHED)):
        CACHED.changed()
        _note_change(update)
    elif not (alone and result.message.startswith(_UNTOUCHED)):
        CACHED.changed()
        WEIGHTS.on_lost(f"lost by {_OWN_WORD}", _version())
        logger.warning(
            "a change of weights failed on the way: which weights this engine has is not known, and no prompt is"
            " exchanged with other engines until update_weights_from_disk has loaded them or the engine is told their"
            " version (/update_weight_version)"
        )
    return result


def note_end(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Wraps the end of an update session: if SGLang received no weights in it, they were written by other code."""
    session = updater._session
    result = original(updater, *args, **kwargs)
    if session is not None and not session.loaded_weights and session.selector != _DRAFT:
        CACHED.changed()
        WEIGHTS.on_changed(_version())
    return result


def note_release(_result: Any, updater: Any, request: Any, *_args: Any, **_kwargs: Any) -> None:
    """Runs after SGLang has given memory back: weights without a copy in host memory are lost.

    Other weights, or those of the files again, come by an update before or after SGLang has taken memory again.
    """
    from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
    from sglang.srt.runtime_context import get_exec

    given_back = not request.tags or GPU_MEMORY_TYPE_WEIGHTS in request.tags
    if given_back and updater.memory_saver_adapter.enabled and not get_exec().features.enable_weights_cpu_backup:
        CACHED.changed()
        WEIGHTS.on_lost(f"lost by {_OWN_WORD}", _version())
        logger.info(
            "this engine has given its weights back: no prompt is exchanged with other engines until"
            " update_weights_from_disk has loaded them or the engine is told their version (/update_weight_version)"
        )


def name() -> str:
    """The name of the current weights; "" for those of the start."""
    return WEIGHTS.name(_version())


def name_in_cache() -> str:
    """The name of the weights of which all KV in the prefix cache is; one of no other engine where it is of several."""
    return name() if CACHED.are_current else f"{name()}, mixed by {_OWN_WORD}"


def _note_change(update: Any) -> None:
    is_named, is_whole = update.weight_version not in (None, UNNAMED_VERSION), hasattr(update, "model_path")
    if is_whole and not (is_named and WEIGHTS.is_by_clients):
        WEIGHTS.on_loaded(_digest_of_files(update), _version())
    elif not is_named:
        WEIGHTS.on_changed(_version())
    if is_named:
        WEIGHTS.on_versioned(_version())


def _digest_of_files(update: Any) -> str:
    load_format = str(update.load_format or "auto")
    return digest_of_weights(
        update.model_path, revision=None, cache_folder=None, load_format=load_format, logger=logger
    )


def _version() -> str:
    """The version given with the weights at SGLang's start (``--weight-version``) or in an update; "" if none."""
    from sglang.srt.runtime_context import get_serving

    version = str(get_serving().weight_version or "")
    return version if version != UNNAMED_VERSION else ""
