"""What copies KV for vLLM's OffloadingConnector, between a device and host memory, where its own kernels do nothing."""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Final

import torch

BY_ADDRESS: Final = 4
"""cudaMemcpyDefault."""


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
    """Queued in the current stream. Addresses and sizes: int64, in host memory."""
    runtime = ctypes.CDLL("libcudart.so.13")
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        if _is_of_device(source):
            Copied.to_host_bytes += size
        else:
            Copied.to_device_bytes += size
        status = runtime.cudaMemcpyAsync(
            ctypes.c_void_p(target), ctypes.c_void_p(source), ctypes.c_size_t(size), BY_ADDRESS, stream
        )
        if status != 0:
            raise RuntimeError(f"cudaMemcpyAsync of {size} bytes answered {status}")


def _is_of_device(address: int) -> bool:
    kind = ctypes.c_int()
    driver = ctypes.CDLL("libcuda.so.1")
    return driver.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(address)) == 0 and kind.value == 2
