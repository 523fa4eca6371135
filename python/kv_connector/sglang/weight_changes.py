"""What was changed of a scheduler's weights while it runs, as SGLang's own updater says. Imports nothing of SGLang's.

The scheduler's thread only. Of a change that failed SGLang 0.5.23 says no more than that. A model that was sent tensors
is partly changed then, and one that was to load files goes back to the new ones: SGLang notes their folder before it
loads. So after a failure the weights are not known, unless its message says that nothing was touched.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from kv_connector.changed_weights import ChangedWeights
from kv_connector.weights_digest import digest_of_weights

logger = logging.getLogger("sglang.srt.kv_messenger")

UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
SOURCES = tuple(f"{UPDATER}.update_weights_from_{source}" for source in ("disk", "distributed", "tensor", "ipc"))
END_OF_UPDATE = f"{UPDATER}.end_weight_update"
UNNAMED_VERSION = "default"
"""SGLang's, of weights that have not been given a name."""
NOT_FLUSHED = "Weights were updated"
"""How SGLang's message begins where it calls a change a failure, because its cache could not be flushed after it."""
_UNTOUCHED = (
    "update_weights_from_distributed must run between",
    "update_weights_from_tensor must run between",
    "Failed to receive weights",
    "Failed to get model loader",
    "Failed to get weights iterator",
    "Online weight updates are not supported",
)
"""How its messages begin where the model has not been touched yet."""
_DRAFT = "draft"
"""SGLang's word for a change of the draft's weights alone, which no answer depends on."""
_OWN_WORD = uuid.uuid4().hex
"""That no other engine has."""
WEIGHTS = ChangedWeights()
"""Of this process's scheduler."""


def note_update(original: Callable[..., Any], updater: Any, update: Any, *args: Any, **kwargs: Any) -> Any:
    """Around SGLang's ways to change the weights of a scheduler that runs: prompts are named by what it has now."""
    result = original(updater, update, *args, **kwargs)
    if getattr(update, "selector", "") == _DRAFT:
        return result
    alone = updater.draft_worker is None
    if result.success or (alone and result.message.startswith(NOT_FLUSHED)):
        _note_change(update)
    elif not (alone and result.message.startswith(_UNTOUCHED)):
        WEIGHTS.on_lost(f"lost by {_OWN_WORD}")
        logger.warning(
            "a change of weights failed on the way: which weights this engine has is not known, and no prompt is"
            " exchanged with other engines until update_weights_from_disk has loaded them or the engine is told their"
            " version (/update_weight_version)"
        )
    return result


def note_end(original: Callable[..., Any], updater: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the end of a session of updates: where SGLang was given nothing in it, weights were written past it."""
    session = updater._session
    result = original(updater, *args, **kwargs)
    if session is not None and not session.loaded_weights and session.selector != _DRAFT:
        WEIGHTS.on_changed(_version())
    return result


def name() -> str:
    """What the weights of now are called; "" where they are those of the start."""
    return WEIGHTS.name(_version())


def _note_change(update: Any) -> None:
    if update.weight_version not in (None, UNNAMED_VERSION):
        WEIGHTS.on_versioned(_version())
    elif hasattr(update, "model_path"):
        WEIGHTS.on_loaded(_digest_of_files(update), _version())
    else:
        WEIGHTS.on_changed(_version())


def _digest_of_files(update: Any) -> str:
    load_format = str(update.load_format or "auto")
    return digest_of_weights(
        update.model_path, revision=None, cache_folder=None, load_format=load_format, logger=logger
    )


def _version() -> str:
    """What SGLang was told with the weights, at its start (``--weight-version``) or when it was given others."""
    from sglang.srt.runtime_context import get_serving

    version = str(get_serving().weight_version or "")
    return version if version != UNNAMED_VERSION else ""
