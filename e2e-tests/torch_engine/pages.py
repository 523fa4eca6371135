"""The paged KV cache: one allocation with a row of pages for each layer, as vLLM lays it out."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from torch_engine.plan import EnginePlan


class Pages:
    """[layer][block, head, token, keys and values], with heads (HND) or tokens (NHD) outermost inside a page.

    The engine's thread only. Block 0 is no place for KV: what padding writes goes there.
    """

    def __init__(self, plan: EnginePlan, allocation: Any) -> None:
        """`allocation`: the context that the connector wants the memory to be allocated in, or None."""
        shape = plan.shape
        content = 2 * shape.head_size
        inner = (
            (shape.kv_heads, plan.block_tokens, content)
            if plan.layout == "HND"
            else (plan.block_tokens, shape.kv_heads, content)
        )
        sizes = (shape.layers, plan.blocks, *inner)
        length_bytes = 4 * shape.layers * plan.blocks * shape.kv_heads * plan.block_tokens * content
        on_host = plan.device == "cuda" and plan.kv_in_host_memory
        with allocation or contextlib.nullcontext():
            storage = torch.zeros(length_bytes, dtype=torch.int8, device="cpu" if on_host else plan.device)
        self.storage = storage
        seen = seen_by_device(storage) if on_host else storage
        self.layers = self._views(seen, plan, sizes)
        """As the model writes and reads them."""
        named = self._views(storage, plan, sizes)
        self.named = dict(zip(shape.layer_names(), named, strict=True))
        """As the connector is told of them."""
        self._layout = plan.layout
        self._block_tokens = plan.block_tokens

    @staticmethod
    def _views(storage: Tensor, plan: EnginePlan, sizes: tuple[int, ...]) -> list[Tensor]:
        whole = storage.view(torch.float32).view(sizes)
        return [layer if plan.layout == "HND" else layer.transpose(1, 2) for layer in whole.unbind(0)]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """[rows, tokens, kv heads, size] into the places that are named by block · tokens of a block + offset."""
        blocks, offsets = slots // self._block_tokens, slots % self._block_tokens
        self.layers[layer][blocks, :, offsets] = torch.cat([keys, values], dim=-1)

    def read(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens of each row's blocks: [rows, tokens, kv heads, size]."""
        found = self.layers[layer][tables]  # rows, blocks, heads, tokens, content
        rows, blocks, heads, tokens, content = found.shape
        ordered = found.transpose(2, 3).reshape(rows, blocks * tokens, heads, content)
        keys, values = ordered.chunk(2, dim=-1)
        return keys, values


class _AsDevice:
    """Device memory as torch takes it from other libraries."""

    def __init__(self, address: int, length_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (length_bytes,),
            "typestr": "|i1",
            "data": (address, False),
            "version": 3,
        }


def seen_by_device(storage: Tensor) -> Tensor:
    """The same bytes of the host, page-locked, as a tensor of the device."""
    from kv_connector.memory.cuda_driver import CudaDriver

    torch.cuda.init()
    torch.zeros(1, device="cuda")  # makes the context
    address = CudaDriver().register_host_memory(storage.data_ptr(), storage.nbytes)
    seen = torch.as_tensor(_AsDevice(address, storage.nbytes), device="cuda")
    assert seen.data_ptr() == address, "torch copied what it was to take as it is"
    return seen
