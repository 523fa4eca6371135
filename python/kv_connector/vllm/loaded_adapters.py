"""Names the LoRA adapters that an engine computes with, as they were when it loaded them. The core's thread only.

Adapters are trained again and written over their files, which both sides may share; vLLM goes on with what it has read
until it is told to read them again (``/v1/load_lora_adapter`` with ``load_inplace``), and so one side may have other
weights than the other and than the files. vLLM keeps adapters by their number, at most ``max_cpu_loras`` of them, and
reads one again that it had to drop.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from kv_connector.adapter_digest import KNOWN_MAX, adapter_identity


class LoadedAdapters:
    """Those of one engine, by vLLM's ``LoRARequest``."""

    def __init__(self, kept_max: int, logger: logging.Logger) -> None:
        self._kept_max = kept_max
        self._logger = logger
        self._loaded: dict[int, str] = {}
        """What was loaded under each number; it may have been dropped since."""
        self._warned: set[int] = set()
        self._own_word = uuid.uuid4().hex

    def on_added(self, adapter: Any) -> None:
        """The workers have it; one that they had, they have read again only where they were told to."""
        if adapter.load_inplace:
            self.on_removed(adapter.lora_int_id)
        self._first(adapter, adapter_identity(adapter.lora_name, adapter.lora_path))

    def on_removed(self, number: int) -> None:
        """The workers have dropped it."""
        self._loaded.pop(number, None)
        self._warned.discard(number)

    def forget(self) -> None:
        """The workers have dropped all: they do where the model's own weights are replaced."""
        self._loaded.clear()
        self._warned.clear()

    def identity(self, adapter: Any) -> str:
        """The name and the digest of what a request with this adapter is computed with."""
        if adapter.load_inplace:  # vLLM keeps that with the adapter's requests, and reads it for each pass
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
