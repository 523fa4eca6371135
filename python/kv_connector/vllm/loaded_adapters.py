"""Identifies LoRA adapters by the contents that the engine has loaded. Used by the engine core's thread only.

Retraining overwrites an adapter's files, which both sides may share. vLLM keeps using the weights it has read until it
is asked to load them again (``/v1/load_lora_adapter`` with ``load_inplace``), so one side's weights may differ from the
other's and from the files. vLLM keeps at most ``max_cpu_loras`` adapters, by number, and reads an evicted one again.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from kv_connector.naming.adapter_digest import KNOWN_MAX, adapter_identity


class LoadedAdapters:
    """The adapters of one engine, each given by vLLM's ``LoRARequest``."""

    def __init__(self, kept_max: int, logger: logging.Logger) -> None:
        self._kept_max = kept_max
        self._logger = logger
        self._loaded: dict[int, str] = {}
        """The identity loaded under each number; vLLM may have evicted it since."""
        self._warned: set[int] = set()
        self._own_word = uuid.uuid4().hex

    def on_added(self, adapter: Any) -> None:
        """The workers have the adapter. If they had it already, only ``load_inplace`` makes them read it again."""
        if adapter.load_inplace:
            self.on_removed(adapter.lora_int_id)
        self._first(adapter, adapter_identity(adapter.lora_name, adapter.lora_path))

    def on_removed(self, number: int) -> None:
        """The workers have dropped the adapter of this number."""
        self._loaded.pop(number, None)
        self._warned.discard(number)

    def forget(self) -> None:
        """The workers have dropped all adapters, as they do when the model's own weights are replaced."""
        self._loaded.clear()
        self._warned.clear()

    def identity(self, adapter: Any) -> str:
        """The name and digest of the adapter weights with which a request is computed."""
        if adapter.load_inplace:  # the flag stays in the adapter's requests: vLLM reads the files for each pass
            self.on_removed(adapter.lora_int_id)
        now = adapter_identity(adapter.lora_name, adapter.lora_path)
        loaded = self._first(adapter, now)
        if loaded == now or len(self._loaded) <= self._kept_max:
            return loaded
        self._warn(adapter)
        return f"{loaded}\n{self._own_word}"

    def _warn(self, adapter: Any) -> None:
        if adapter.lora_int_id not in self._warned:
            self._warned.add(adapter.lora_int_id)
            self._logger.warning(
                "the files of adapter %s in %s have changed since this engine loaded them, and it has had more than"
                " max_cpu_loras adapters, so that it may have read them again: no prompt with it is exchanged with"
                " other engines until it is loaded again (/v1/load_lora_adapter with load_inplace)",
                *(adapter.lora_name, adapter.lora_path),
            )

    def _first(self, adapter: Any, now: str) -> str:
        if adapter.lora_int_id not in self._loaded and len(self._loaded) >= KNOWN_MAX:
            self.on_removed(next(iter(self._loaded)))
        return self._loaded.setdefault(adapter.lora_int_id, now)
