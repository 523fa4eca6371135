"""Weights that engines are given while they run: each page holds the KV of the weights that computed it.

The hooks of the backend name prompts here as in SGLang's scheduler; only what a digest is made of is the stories' own.
As SGLang does when it is idle, an engine forgets what it has cached when its weights change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from kv_connector.sglang import hooks, weight_changes

if TYPE_CHECKING:
    from sglang_loop.decode_engine import DecodeEngine
    from sglang_loop.prefill_engine import PrefillEngine
    from sglang_loop.story import Ask

WEIGHTS_OF_THE_START = 0


class Weights:
    """Which weights each engine of a story has. An engine that is started again has those that it would have by now."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._latest = WEIGHTS_OF_THE_START
        self._acting = WEIGHTS_OF_THE_START
        """Those of the engine whose scheduler runs."""

    def start(self, engine: PrefillEngine | DecodeEngine) -> None:
        """An engine has these from its first prompt on."""
        engine.weights = self._of.setdefault(engine.plan.name, WEIGHTS_OF_THE_START)

    def acts(self, engine: PrefillEngine | DecodeEngine) -> None:
        """The scheduler of this engine runs next: it is what the process is."""
        self._acting = engine.weights

    def next(self) -> int:
        """Weights that no engine has had."""
        self._latest += 1
        return self._latest

    def give(self, name: str, weights: int, engine: PrefillEngine | DecodeEngine | None) -> None:
        """An engine, which may be gone just now, has other weights from here on."""
        self._of[name] = weights
        if engine is not None:
            engine.update(weights)

    def differ(self, ask: Ask) -> bool:
        """Whether its prefiller and its decoder have other weights now."""
        return self._of[ask.prefiller] != self._of[ask.decoder]

    def in_place(self) -> contextlib.ExitStack:
        """What the hooks find of SGLang."""
        stack = contextlib.ExitStack()
        digest: Callable[[Any, Any], str] = lambda scheduler, request: request.ask.named(scheduler.weights)  # noqa: E731
        stack.enter_context(mock.patch.object(weight_changes, "name", self._name))
        stack.enter_context(mock.patch.object(hooks, "_digest_in", digest))
        return stack

    def _name(self) -> str:
        return name_of(self._acting)


def name_of(weights: int) -> str:
    """As the backend names weights: those of the start have no name."""
    return f"step {weights}" if weights else ""
