"""What copies KV between a device and host memory, for vLLM's OffloadingConnector and SGLang's hierarchical cache.

Their own kernels do nothing here; these copies are CUDA's, queued in the current stream.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch

from uncomputed.rows import Rows

BY_ADDRESS: Final = 4
"""cudaMemcpyDefault."""
LATE_US: Final = 300_000
"""By how much what is loaded into a device comes later than its copies are queued: long after a pass that did not wait
for it has read, or sent, what was there before."""


class Copied:
    """Bytes of this process, by their direction; also where nothing is offloaded."""

    to_host_bytes = 0
    to_device_bytes = 0


def stand_in() -> None:
    """In a process that has vLLM's operators; copies of all lengths go through the same one."""
    from vllm.v1.kv_offload.cpu import swap_blocks_triton

    swap_blocks_triton.MIN_N = sys.maxsize  # Triton's kernel takes batches from this size on
    torch.ops._C_cache_ops.known["swap_blocks_batch"] = _copied


def _copied(sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *given: Any) -> None:
    """vLLM's `swap_blocks_batch`, all in one direction. Addresses and sizes: int64, in host memory."""
    pieces = zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True)
    _copy(pieces, from_device=_is_of_device(int(sources[0])))


def transfer_kv_direct(
    *,
    src_layers: list[torch.Tensor],
    dst_layers: list[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """SGLang's: pages of each layer; an index is that of a token, in rows of the layers' first dimension."""
    pages = list(zip(src_indices.tolist()[::page_size], dst_indices.tolist()[::page_size], strict=True))
    pieces = []
    for source, target in zip(src_layers, dst_layers, strict=True):
        row_bytes = source.stride(0) * source.element_size()
        begins = source.data_ptr(), target.data_ptr()
        pieces += [
            (begins[0] + one * row_bytes, begins[1] + other * row_bytes, page_size * row_bytes) for one, other in pages
        ]
    _copy(pieces, from_device=src_layers[0].is_cuda)


def _copy(pieces: Iterable[tuple[int, int, int]], *, from_device: bool) -> None:
    """Queued in the current stream, which pauses before what is loaded; the thread goes on."""
    stream = Rows.stream()
    if not from_device:
        pause = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        _called("cudaLaunchHostFunc", stream, pause, ctypes.c_void_p(LATE_US))
    for source, target, size in pieces:
        addresses = ctypes.c_void_p(target), ctypes.c_void_p(source)
        _called("cudaMemcpyAsync", *addresses, ctypes.c_size_t(size), BY_ADDRESS, stream)
        Copied.to_host_bytes += size * from_device
        Copied.to_device_bytes += size * (not from_device)


def _called(name: str, *given: Any) -> None:
    status = getattr(ctypes.CDLL("libcudart.so.13"), name)(*given)
    if status != 0:
        raise RuntimeError(f"{name} answered {status}")


def _is_of_device(address: int) -> bool:
    kind = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    return driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(address)) == 0 and kind.value == 2
