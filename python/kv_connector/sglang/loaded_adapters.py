"""Identifies a scheduler's LoRA adapters by the contents that SGLang has loaded. Needs no import of SGLang.

The files do not identify them: if a file is replaced and only one of two servers loads it again, both would be named by
the new file. Adapters that a trainer sends as tensors have no file. So each load is observed when it happens; SGLang
gives each load an id of its own. Used by the scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from kv_connector.naming.adapter_digest import adapter_identity, identity_of_tensors
from kv_connector.sglang import BACKEND_NAME

_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
FROM_FILES = f"{_MANAGER}._load_lora_adapter"
"""Loads at the start and later ones; the public method has only the later ones."""
FROM_TENSORS = f"{_MANAGER}.load_lora_adapter_from_tensors"
_UNKNOWN = "an adapter"


class LoadedAdapters:
    """The adapters of one scheduler, for each of SGLang's LoRA managers: a draft has its own."""

    def __init__(self) -> None:
        self._by_manager: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()

    def note_files(self, original: Callable[..., Any], manager: Any, adapter: Any) -> Any:
        """Wraps the method that loads an adapter from a folder."""
        if not _is_compared():
            return original(manager, adapter)
        before = _identity_of_files(adapter)
        result = original(manager, adapter)
        after = _identity_of_files(adapter)
        changing = "" if after == before else f"\n{adapter.lora_id}"  # which of the two was read is unknown
        self._keep(manager, adapter, after + changing)
        return result

    def note_tensors(
        self,
        original: Callable[..., Any],
        manager: Any,
        adapter: Any,
        tensors: Mapping[str, Any],
        settings: Mapping[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Wraps the method that loads an adapter from tensors."""
        if not _is_compared():
            return original(manager, adapter, tensors, settings, *args, **kwargs)
        identity = identity_of_tensors(adapter.lora_name or "", tensors, settings)
        result = original(manager, adapter, tensors, settings, *args, **kwargs)
        self._keep(manager, adapter, identity)
        return result

    def identity(self, manager: Any, adapter_id: str) -> str:
        """What two servers compare of the adapter to which SGLang gave this id."""
        known = manager.lora_refs.get(adapter_id) if manager is not None else None
        if known is None:
            return _UNKNOWN
        return self._by_manager.get(manager, {}).get(adapter_id) or _identity_of_files(known)

    def _keep(self, manager: Any, adapter: Any, identity: str) -> None:
        before = self._by_manager.get(manager, {}).items()
        kept = {known: name for known, name in before if known in manager.lora_refs}
        self._by_manager[manager] = {**kept, adapter.lora_id: identity}


def _is_compared() -> bool:
    """Whether this server uses this backend, so that peers compare adapters."""
    from sglang.srt.runtime_context import get_disagg

    return bool(get_disagg().disaggregation_transfer_backend == BACKEND_NAME)


def _identity_of_files(adapter: Any) -> str:
    return adapter_identity(adapter.lora_name or "", adapter.lora_path or "")


ADAPTERS = LoadedAdapters()
"""The adapters of this process's scheduler."""
