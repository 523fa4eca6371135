"""Loads the real connector base classes of a vLLM release under stubs, and the connector on top of them.

Only the modules in ``REAL`` are vLLM's own; everything else that they import is an empty stand-in. That takes
milliseconds and needs neither torch nor the rest of vLLM.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import vllm_sources

REAL = (
    "vllm.v1.metrics.cache_hit_source",
    "vllm.v1.core.sched.output",
    "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "vllm.distributed.kv_transfer.kv_connector.base",
    "vllm.distributed.kv_transfer.kv_connector.factory",
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector",
)
CONNECTOR_PACKAGE = "kv_connector.vllm"


@dataclass(frozen=True)
class Release:
    """A loaded release: vLLM's modules and ours, by the last part of their names."""

    name: str
    folder: Path
    base: ModuleType
    factory: ModuleType
    output: ModuleType
    connector: ModuleType
    stats: ModuleType
    metadata: ModuleType
    engine_facts: ModuleType
    rank_start: ModuleType
    vllm_api: ModuleType
    package: ModuleType
    multi: ModuleType


@contextlib.contextmanager
def loaded(name: str) -> Iterator[Release]:
    """The release, in place of whatever ``vllm`` this process has; raises SourcesUnavailableError."""
    folder = vllm_sources.sources(name)
    replaced = {module: sys.modules.pop(module) for module in list(sys.modules) if _is_ours(module)}
    try:
        _install_stubs()
        for module in REAL:
            _load(module, folder)
        yield Release(
            name=name,
            folder=folder,
            base=sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"],
            factory=sys.modules["vllm.distributed.kv_transfer.kv_connector.factory"],
            output=sys.modules["vllm.v1.core.sched.output"],
            connector=importlib.import_module(f"{CONNECTOR_PACKAGE}.connector"),
            stats=importlib.import_module(f"{CONNECTOR_PACKAGE}.stats"),
            metadata=importlib.import_module(f"{CONNECTOR_PACKAGE}.metadata"),
            engine_facts=importlib.import_module(f"{CONNECTOR_PACKAGE}.engine_facts"),
            rank_start=importlib.import_module(f"{CONNECTOR_PACKAGE}.rank_start"),
            vllm_api=importlib.import_module(f"{CONNECTOR_PACKAGE}.vllm_api"),
            package=importlib.import_module(CONNECTOR_PACKAGE),
            multi=sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"],
        )
    finally:
        for module in list(sys.modules):
            if _is_ours(module):
                del sys.modules[module]
        sys.modules.update(replaced)


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in ("vllm", "torch") or module.startswith(CONNECTOR_PACKAGE)


def _install_stubs() -> None:
    torch = _stub("torch", Tensor=object, device=object, dtype=object, finfo=object, Size=tuple)
    torch.__dict__["nn"] = _stub("torch.nn", Module=object)
    _stub("vllm.logger", init_logger=logging.getLogger)
    _stub("vllm.v1.attention.backend", AttentionMetadata=object)
    _stub("vllm.v1.outputs", KVConnectorOutput=object)
    _stub("vllm.config", KVTransferConfig=object, VllmConfig=object)
    _stub("vllm.config.kv_transfer", KVTransferConfig=object)
    _stub("vllm.config.ec_manager_config", EncoderCacheManagerMetadata=object)
    _stub("vllm.platforms", current_platform=SimpleNamespace(device_type="cpu"))
    _stub("vllm.multimodal.utils", strip_covered_mm_data=lambda features, *_, **__: features)
    _stub("vllm.utils.func_utils", supports_kw=_supports_kw)
    _stub("vllm.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 0, get_pp_group=_Group)
    _stub(
        "vllm.distributed.kv_transfer.kv_transfer_state",
        has_kv_transfer_group=lambda: False,
        get_kv_transfer_group=lambda: None,
    )
    # The real package's __init__ imports a connector with all that it needs.
    v1 = _stub("vllm.distributed.kv_transfer.kv_connector.v1")
    v1.__dict__["__getattr__"] = lambda name: getattr(
        sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"], name
    )


def _supports_kw(function: Any, keyword: str) -> bool:
    return keyword in importlib.import_module("inspect").signature(function).parameters


class _Group:
    rank_in_group = 0


def _stub(name: str, **attributes: Any) -> ModuleType:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        partial = ".".join(parts[:end])
        if partial not in sys.modules:
            module = ModuleType(partial)
            module.__path__ = []
            sys.modules[partial] = module
            if end > 1:
                setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module)
    sys.modules[name].__dict__.update(attributes)
    return sys.modules[name]


def _load(name: str, folder: Path) -> None:
    parent, _, leaf = name.rpartition(".")
    _stub(parent)
    path = folder / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    setattr(sys.modules[parent], leaf, module)
    spec.loader.exec_module(module)


class Status(enum.Enum):
    """The names of vLLM's RequestStatus that matter here; a test compares them with the release's own."""

    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    PREEMPTED = 4
    FINISHED_STOPPED = 5
    FINISHED_LENGTH_CAPPED = 6
    FINISHED_ABORTED = 7
    FINISHED_ERROR = 8
    FINISHED_REPETITION = 9
