"""Follows weight changes by the methods called on an engine's workers. Used by the engine core's thread only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from logging import Logger
from typing import Any

from kv_connector.naming.changed_weights import ChangedWeights

_NO_VERSION = "default"
"""vLLM's version of weights to which none was given."""

LOADED_AT_REST = "kv_messenger_weights_loaded"
"""In place of a method, with a version and a name: the engine, at rest and with an empty cache, has loaded these."""

CHANGING = frozenset(
    {
        *("reload_weights", "update_config", "reset_weights", "load_model", "apply_model"),
        *("start_weight_update", "start_draft_weight_update", "update_weights", "finish_weight_update"),
    }
)
"""Methods of vLLM's workers that change weights or announce a change; ``apply_model`` may merely read them."""

HARMLESS = frozenset(
    {
        *("add_lora", "remove_lora", "pin_lora", "list_loras"),
        *("annotate_profile", "profile", "check_health", "synchronize_device", "shutdown", "handle_ft_command"),
        *("checkpoint_prepare", "checkpoint_restore", "elastic_ep_execute", "get_simple_cpu_offload_num_cpu_blocks"),
        *("compile_or_warm_up_model", "determine_available_memory", "initialize_from_config", "init_device"),
        *("init_worker", "update_environment_variables", "update_max_model_len", "adjust_rank"),
        *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "supports_draft_weight_updates"),
        *("compute_weight_checksums", "save_sharded_state", "save_tensorized_model"),
        *("execute_model", "execute_dummy_batch", "sample_tokens", "take_draft_token_ids"),
        *("get_cache_block_size_bytes", "get_compilation_match_table", "get_encoder_timing_stats", "vocab_size"),
        *("get_kv_cache_spec", "get_supported_kv_cache_layouts", "set_kv_cache_layout", "get_supported_tasks"),
        *("get_kv_connector_handshake_metadata", "get_model", "get_draft_model", "get_model_inspection"),
        *("release_late_interaction_query_cache", "reset_encoder_cache", "reset_mm_cache"),
        *("sleep", "wake_up", "discard"),
    }
)
"""The other methods of vLLM's workers. A test checks that the two lists are complete: any other method is a user's."""

_WEIGHTS_DISCARDED = 2
"""vLLM's level of sleep."""

NO_SUCH_METHOD = ("Method {!r} is not implemented", "object has no attribute {!r}")
"""The errors of vLLM's executors, in one process and in several, for a method that does not exist: nothing ran."""


def may_change_weights(method: object) -> bool:
    """Whether this method may change the workers' weights: true for each one that is not known to keep them.

    A function of vLLM keeps them; a user's function, which the workers run, may do anything.
    """
    if isinstance(method, str):
        return method not in HARMLESS
    return str(getattr(method, "__module__", "")).partition(".")[0] != "vllm"


class WeightChanges:
    """Names the engine's current weights, through reloads from files, updates by a trainer, and a user's own code."""

    def __init__(
        self, digest_of_files: Callable[[str], str], forget_adapters: Callable[[], None], logger: Logger
    ) -> None:
        self._digest_of_files = digest_of_files
        self._forget_adapters = forget_adapters
        """Called when the model's weights are replaced: vLLM's workers then drop all adapters and read them again."""
        self._logger = logger
        self._weights = ChangedWeights()
        self._version = ""
        self._session = ""
        """"model" or "draft" while a trainer sends its weights; half-updated weights of the model name no prompt."""
        self._path = ""
        self._own_word = uuid.uuid4().hex
        self._noted: set[str] = set()
        """The methods whose line was logged."""

    def started_with(self, model: str) -> None:
        """Sets the path from which the engine loads its weights."""
        self._path = model
        self._weights.started_with(self._digest_of_files(model))

    def on_called(
        self, method: object, args: Sequence[Any], kwargs: Mapping[str, Any], fault: BaseException | None = None
    ) -> None:
        """The workers have run a method that may change weights; if it failed, their weights are unknown."""
        failed = fault is not None
        if failed and any(words.format(method) in str(fault) for words in NO_SUCH_METHOD):
            return
        if method in ("start_weight_update", "start_draft_weight_update"):
            self._on_started(str(method), failed=failed)
        elif method == LOADED_AT_REST:
            self._on_landed(str(args[0]), str(args[1]))
        elif method in ("update_weights", "finish_weight_update"):
            self._on_sent(str(method), failed=failed)
        elif method == "update_config":
            self._path = ""  # another model or other files: the files of the next load are unknown
        elif failed:
            self._on_lost(method)
        elif method == "reload_weights":
            self._on_reloaded(args, kwargs)
        else:
            self._note(method)
            self._weights.on_changed(self._version)

    def on_versioned(self, version: str) -> None:
        """vLLM was given the version of its weights."""
        self._version = "" if version == _NO_VERSION else version
        self._weights.on_versioned(self._version)

    def on_slept(self, level: int) -> None:
        """The engine sleeps; from level 2 on it has no weights any more, and gets some after it has woken up."""
        if level >= _WEIGHTS_DISCARDED:
            self._logger.info(
                "this engine has discarded its weights to sleep: no prompt is exchanged with other engines until"
                " reload_weights has loaded them from files or the engine is told their version"
                " (/update_weight_version)"
            )
            self._weights.on_lost(f"lost by {self._own_word}", self._version)
            self._forget_adapters()

    @property
    def is_settled(self) -> bool:
        """Whether no update of the model is under way: the name stays until the next one begins."""
        return self._session != "model"

    def name(self) -> str:
        """The name of the weights in prompt digests; "" for those of the start."""
        name = self._weights.name(self._version)
        return f"{name}, being sent to {self._own_word}" if self._session == "model" else name

    def _on_landed(self, version: str, name: str) -> None:
        self._version = version
        self._weights.on_landed(name, version)
        self._session = ""
        self._forget_adapters()

    def _on_started(self, method: str, *, failed: bool) -> None:
        """A failed start has changed nothing: vLLM refuses if updates are not configured or one is in progress."""
        if not failed:
            self._session = "draft" if method == "start_draft_weight_update" else "model"

    def _on_sent(self, method: str, *, failed: bool) -> None:
        """vLLM ends an update at its first part that fails, and refuses parts without an update."""
        ended = failed or method == "finish_weight_update"
        if failed and self._session == "model":
            self._on_lost(method)
        elif ended and not failed and self._session != "draft":
            self._weights.on_changed(self._version)
            self._forget_adapters()
        self._session = "" if ended else self._session or "model"

    def _on_lost(self, method: object) -> None:
        self._logger.warning(
            "%s failed on the way: which weights this engine has is not known, and no prompt is exchanged with other"
            " engines until reload_weights has loaded them from files or the engine is told their version"
            " (/update_weight_version)",
            method,
        )
        self._weights.on_lost(f"lost by {self._own_word}", self._version)

    def _note(self, method: object) -> None:
        name = str(getattr(method, "__qualname__", method))
        if name not in self._noted:
            self._noted.add(name)
            self._logger.info(
                "%s may have changed this engine's weights: requests with engines of which the same was not asked fail,"
                " until both are told one version of their weights (/update_weight_version)",
                name,
            )

    def _on_reloaded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        iterated = bool(args) or kwargs.get("weights_iterator") is not None  # the first argument
        path = kwargs.get("weights_path")
        known = not iterated and bool(self._path)
        if path and self._path:
            self._path = str(path)
        self._weights.on_loaded(self._digest_of_files(self._path) if known else "", self._version)
        self._forget_adapters()
