"""Names the LoRA adapters of a scheduler as they were when SGLang loaded them. Imports nothing of SGLang's.

A file that is replaced after the load says nothing of what the engine computes with: two servers of which only one has
loaded it again would both be named by the new file. Adapters that come as tensors, from a trainer, have no file. So
each load is looked at when it happens; SGLang gives each an id of its own. The scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from kv_connector.adapter_digest import adapter_identity, identity_of_tensors
from kv_connector.sglang import BACKEND_NAME

_MANAGER = "sglang.srt.lora.lora_manager.LoRAManager"
FROM_FILES = f"{_MANAGER}._load_lora_adapter"
"""Of the start, and of later; public is only the second."""
FROM_TENSORS = f"{_MANAGER}.load_lora_adapter_from_tensors"
_UNKNOWN = "an adapter"


class LoadedAdapters:
    """Those of one scheduler, by SGLang's managers of them: a draft has one of its own."""

    def __init__(self) -> None:
        self._by_manager: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()

    def note_files(self, original: Callable[..., Any], manager: Any, adapter: Any) -> Any:
        """Around what loads an adapter from a folder."""
        if not _is_compared():
            return original(manager, adapter)
        before = _identity_of_files(adapter)
        result = original(manager, adapter)
        after = _identity_of_files(adapter)
        changing = "" if after == before else f"\n{adapter.lora_id}"  # of which of the two it is, nothing is known
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
        """Around what loads an adapter from tensors."""
        if not _is_compared():
            return original(manager, adapter, tensors, settings, *args, **kwargs)
        identity = identity_of_tensors(adapter.lora_name or "", tensors, settings)
        result = original(manager, adapter, tensors, settings, *args, **kwargs)
        self._keep(manager, adapter, identity)
        return result

    def identity(self, manager: Any, adapter_id: str) -> str:
        """What two servers compare of an adapter that SGLang has by this id."""
        known = manager.lora_refs.get(adapter_id) if manager is not None else None
        if known is None:
            return _UNKNOWN
        return self._by_manager.get(manager, {}).get(adapter_id) or _identity_of_files(known)

    def _keep(self, manager: Any, adapter: Any, identity: str) -> None:
        before = self._by_manager.get(manager, {}).items()
        kept = {known: name for known, name in before if known in manager.lora_refs}
        self._by_manager[manager] = {**kept, adapter.lora_id: identity}


def _is_compared() -> bool:
    """Whether this server has peers that this backend speaks to."""
    from sglang.srt.runtime_context import get_disagg

    return bool(get_disagg().disaggregation_transfer_backend == BACKEND_NAME)


def _identity_of_files(adapter: Any) -> str:
    return adapter_identity(adapter.lora_name or "", adapter.lora_path or "")


ADAPTERS = LoadedAdapters()
"""Of this process's scheduler."""
