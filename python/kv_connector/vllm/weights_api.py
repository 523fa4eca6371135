"""All uses of vLLM's API for weights that arrive from outside, the same in vLLM 0.32 and 0.33.

The declarations under ``TYPE_CHECKING`` let mypy check types without vLLM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from kv_connector.vllm.vllm_api import unfit_release

if TYPE_CHECKING:

    class WeightTransferInitInfo:
        """vLLM's base class of what a trainer says first."""

    class WeightTransferUpdateInfo:
        """vLLM's base class of what a trainer says of one update."""

    class WeightTransferEngine:
        """vLLM's base class of a worker's half."""

        init_info_cls: ClassVar[type]
        update_info_cls: ClassVar[type]
        supports_draft_weight_update: bool
        vllm_config: Any
        model_config: Any
        device: Any
        model: Any

        def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None: ...

    class UnquantizedEmbeddingMethod:
        """How vLLM prepares an embedding, or a head, that is not quantized."""

    initialize_layerwise_reload: Callable[[Any], None]
    finalize_layerwise_reload: Callable[[Any, Any], None]
    get_layerwise_info: Callable[[Any], Any]
    get_world_group: Callable[[], Any]
else:
    try:
        from vllm.distributed.parallel_state import get_world_group
        from vllm.distributed.weight_transfer.base import (
            WeightTransferEngine,
            WeightTransferInitInfo,
            WeightTransferUpdateInfo,
        )
        from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
    except ImportError as missing:
        raise ImportError(unfit_release(missing)) from missing

__all__ = [
    "UnquantizedEmbeddingMethod",
    "WeightTransferEngine",
    "WeightTransferInitInfo",
    "WeightTransferUpdateInfo",
    "finalize_layerwise_reload",
    "get_layerwise_info",
    "get_world_group",
    "initialize_layerwise_reload",
]
