"""Hears what an engine's workers are told to do to its weights. The engine core's thread only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.changed_weights import ChangedWeights

_NO_VERSION = "default"
"""vLLM's, of weights that have not been given one."""


class WeightChanges:
    """Follows vLLM's ways to change weights: loading them from files, and a trainer that sends them.

    Not seen: what a user's own worker extension does, and what ``apply_model`` is given.
    """

    METHODS = ("reload_weights", "start_weight_update", "start_draft_weight_update", "finish_weight_update")
    """Of workers; each changes weights, or says whose will be changed."""

    def __init__(self, digest_of_files: Callable[[str], str]) -> None:
        self._digest_of_files = digest_of_files
        self._weights = ChangedWeights()
        self._version = ""
        self._of_draft = False
        self._path = ""

    def started_with(self, model: str) -> None:
        """Where the engine loads its weights from."""
        self._path = model
        self._weights.started_with(self._digest_of_files(model))

    def on_called(self, method: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, failed: bool = False) -> None:
        """The workers have done it, or failed on the way: then what they compute with is not known."""
        if method not in ("reload_weights", "finish_weight_update"):
            self._of_draft = method == "start_draft_weight_update"
        elif failed:
            self._weights.on_changed(self._version)
        elif method == "reload_weights":
            self._on_reloaded(args, kwargs)
        elif not self._of_draft:
            self._weights.on_changed(self._version)

    def on_versioned(self, version: str) -> None:
        """vLLM was told which weights it has."""
        self._version = "" if version == _NO_VERSION else version
        self._weights.on_versioned(self._version)

    def name(self) -> str:
        """What prompts are named by; "" for the weights of the start."""
        return self._weights.name(self._version)

    def _on_reloaded(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        iterated = bool(args) or kwargs.get("weights_iterator") is not None  # the first positional one is that
        self._path = str(kwargs.get("weights_path") or self._path)
        self._weights.on_loaded("" if iterated else self._digest_of_files(self._path), self._version)
