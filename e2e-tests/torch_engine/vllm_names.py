"""Stands in for the modules of vLLM that the connector imports, so that it runs where no vLLM is installed.

Only names that `kv_connector.vllm.vllm_api` takes are here, with the defaults of vLLM's base class. That they are
vLLM's, and that vLLM's base class has all that the engine calls, is what python/tests/vllm/test_torch_engine_calls.py
compares.
"""

from __future__ import annotations

import enum
import logging
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

CALLED_ON_A_WORKER = (
    "get_mem_pool_context",
    "register_kv_caches",
    "get_handshake_metadata",
    "reset_capture_state",
    "handle_preemptions",
    "bind_connector_metadata",
    "has_connector_metadata",
    "wait_for_layer_load",
    "save_kv_layer",
    "finish_forward",
    "start_load_kv",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "build_connector_worker_meta",
    "clear_connector_metadata",
    "shutdown",
)
CALLED_ON_A_SCHEDULER = (
    "bind_kv_cache_manager",
    "set_xfer_handshake_metadata_pp_aware",
    "on_new_request",
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished_all_groups",
    "has_pending_push_work",
)


class Connector:
    """What vLLM's base class answers where a connector does not."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        del vllm_config, role, kv_cache_config
        self._metadata: Any = None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._metadata = None

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)  # type: ignore[attr-defined]

    def finish_forward(self) -> None:
        """The pass is queued."""

    def reset_capture_state(self) -> None:
        """All graphs are captured."""


class SupportsGroups:
    """Says that several groups of KV caches are served."""


class Metadata:
    """From the scheduler's connector to the workers'."""


class HandshakeMetadata:
    """From a worker's connector to the scheduler's, once."""


class WorkerMetadata:
    """From a worker's connector to the scheduler's, after a step."""


class Role(enum.Enum):
    SCHEDULER = 0
    WORKER = 1


class HitSource(enum.Enum):
    P2P = "p2p"


@dataclass
class TransferResults:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


@dataclass
class Stats:
    data: dict[str, Any] = field(default_factory=dict)


class PromMetrics:
    """There is no metrics page."""


class PipelineGroup:
    rank_in_group = 0


def install(device_type: str) -> None:
    """Before the connector is imported, in a process that imports no vLLM."""
    base = "vllm.distributed.kv_transfer.kv_connector.v1"
    _module(
        f"{base}.base",
        KVConnectorBase_V1=Connector,
        KVConnectorHandshakeMetadata=HandshakeMetadata,
        KVConnectorMetadata=Metadata,
        KVConnectorRole=Role,
        KVConnectorTransferResults=TransferResults,
        KVConnectorWorkerMetadata=WorkerMetadata,
        SupportsHMA=SupportsGroups,
    )
    _module(f"{base}.metrics", KVConnectorPromMetrics=PromMetrics, KVConnectorStats=Stats)
    _module("vllm.logger", init_logger=logging.getLogger)
    _module("vllm.v1.metrics.cache_hit_source", CacheHitSource=HitSource)
    _module("vllm.v1.metrics.utils", create_metric_per_engine=lambda metric, labels: {})
    _module("vllm.platforms", current_platform=SimpleNamespace(device_type=device_type))
    _module("vllm.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 0, get_pp_group=PipelineGroup)
    _module(
        "vllm.distributed.kv_transfer.kv_transfer_state",
        has_kv_transfer_group=lambda: False,
        get_kv_transfer_group=lambda: None,
    )


def _module(name: str, **names: Any) -> None:
    for end in range(1, name.count(".") + 2):
        partial = ".".join(name.split(".")[:end])
        if partial not in sys.modules:
            sys.modules[partial] = ModuleType(partial)
            sys.modules[partial].__path__ = []
    sys.modules[name].__dict__.update(names)
