"""The preparations on a GPU before the messenger exists: KV memory that peers can map, and graphs that count layers.

SGLang captures its CUDA graphs before it creates a KV manager. So the counter's increments are captured before there is
a counter, and have no effect until there is one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from kv_connector.configuration.options import Options
from kv_connector.exceptions import OptionError
from kv_connector.memory.cuda_driver import CudaDriver, CudaError
from kv_connector.memory.device_allocation import DeviceAllocation, allocation_to_share
from kv_connector.memory.device_counter import DeviceCounting
from kv_connector.memory.device_word import DeviceWord
from kv_connector.memory.layer_counter import GraphLayers
from kv_connector.sglang import geometry, pool_kinds
from kv_connector.sglang.allocations import Allocation

logger = logging.getLogger("sglang.srt.kv_messenger")


class DeviceSide:
    """This process's use of its GPU. Used by the scheduler's thread only, on which the engine's context is current."""

    def __init__(self) -> None:
        self.cuda_driver: Callable[[], CudaDriver] = CudaDriver
        self.device_counting: Callable[[], DeviceCounting] = DeviceCounting.checked
        self._allocation: DeviceAllocation | None = None
        self._word: DeviceWord | None = None
        self.graph_layers: GraphLayers | None = None
        """Adds the counting of layers to captured graphs; None if no layer is counted."""

    def allocating(self, options: Options, torch: Any) -> AbstractContextManager[Any]:
        """A context that allocates pools in memory that peers and other processes can map, if that is needed."""
        if "cuda" not in options.transports:
            return contextlib.nullcontext()
        try:
            if self._allocation is None:
                self._allocation = allocation_to_share(torch, self.cuda_driver(), logger)
        except CudaError:
            logger.exception("a GPU's KV memory is left to torch: peers map what the driver lets them")
            return contextlib.nullcontext()
        return self._allocation or contextlib.nullcontext()

    def allocations(self, device: int) -> list[Allocation]:
        """The allocations on this device that can be exported as a whole."""
        if self._allocation is None:
            return []
        ranges = self._allocation.memories.ranges()
        return [
            Allocation(held.address, held.length_bytes, -1, held.device) for held in ranges if held.device == device
        ]

    def prepare_graphs(self, pool: Any) -> None:
        """Called before graphs are captured: from now on, hooks in a capture count the layers of this pool."""
        if self._word is not None:
            return
        try:
            names = _layer_names(pool)
            if not names:
                return
            self._word = self.device_counting().word_for_graphs()
        except (CudaError, OptionError):
            logger.exception("layers cannot be counted on this GPU: chunks leave after their forward pass")
            return
        self.graph_layers = GraphLayers(self._word, names)

    def aim(self, address: int, names: Sequence[str]) -> DeviceWord | None:
        """Directs captured increments to the counter at this address; None, with a warning, if they would miscount."""
        if self._word is None or self.graph_layers is None:
            logger.warning("chunks leave after their forward pass: layers are not counted on this GPU")
            return None
        counted = self.graph_layers.names
        behind = names[len(counted) :]
        if tuple(names[: len(counted)]) != counted or any(geometry.is_counted(name) for name in behind):
            logger.warning(
                "chunks leave after their forward pass: graphs count the %d KV buffers that SGLang's pool had when they"
                " were captured, expected the %d of which it tells now",
                len(counted),
                len(names),
            )
            return None
        try:
            self._word.aim(address)
        except CudaError:
            logger.exception("chunks leave after their forward pass: the messenger's counter is not mapped for the GPU")
            return None
        return self._word

    def let_go(self) -> None:
        """Called before the messenger frees the counter: the graphs remain, without effect. An error is only logged."""
        if self._word is None:
            return
        try:
            self._word.let_go()
        except CudaError:
            logger.exception("the GPU may still write to the layer counter: start this server again if requests fail")


DEVICE = DeviceSide()
"""The one of this process."""


def _layer_names(pool: Any) -> list[str]:
    """The names that the endpoint will give the pool's buffers; [] if chunks are sent after their pass anyway."""
    from sglang.srt.disaggregation.utils import get_kv_transfer_buf_infos, is_mla_backend, setup_state_kv_args

    kv_args = SimpleNamespace(num_draft_entries=0, prefill_start_layer=pool.start_layer)
    kv_args.kv_data_ptrs, kv_args.kv_data_lens, kv_args.kv_item_lens = get_kv_transfer_buf_infos(pool)
    setup_state_kv_args(kv_args, pool, None, len(kv_args.kv_data_ptrs))
    kinds = [pool_kinds.KINDS.get(name) for name in pool_kinds.kinds_beside(kv_args)]
    if any(kind is None or not kind.leaves_early for kind in kinds):
        return []
    latent = is_mla_backend(pool)
    buffers = geometry.kv_buffers(kv_args, latent)
    layers = geometry.layers_in_order(kv_args, latent)
    for kind, component in zip(kinds, pool_kinds.Component.all_of(kv_args), strict=True):
        buffers += pool_kinds.INDEX.buffers(component, layers) if kind is pool_kinds.INDEX else []
    return [buffer.name for buffer, _ in geometry.by_layer([(buffer, 0) for buffer in buffers])]
