"""What the ranks of a vLLM on a CUDA that computes nothing hold of a model, and faults of what they load.

`--worker-extension-cls uncomputed.held_weights.HeldWeights` mixes it into vLLM's workers, whose methods
`/collective_rpc` calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

PARAMETER, BUFFER, DERIVED = "parameter", "buffer", "derived"
BESIDE = ("impl", "quant_method", "moe_kernel", "fused_experts", "moe_quant_config")
"""Objects about a layer that may keep tensors made of its parameters."""
KV = "kv_cache"
EXPERTS_DIMENSIONS = 3
BYTE, LEFT_OUT, SWAPPED = "byte", "left out", "swapped"
"""Faults: one bit of the model's last tensor is another; that tensor is left out; two experts change places."""


class HeldWeights:
    """Of one worker."""

    get_model: Any
    rank: int

    def held_weights(self) -> dict[str, list[str]]:
        """By name: what kind of tensor it is, the digest of its bytes, its device, and where it is in its memory."""
        torch.accelerator.synchronize()
        return {
            name: [kind, digest_of(tensor), str(tensor.device), hex(tensor.data_ptr())]
            for name, kind, tensor in tensors_of(self.get_model())
        }

    def spoil(self, fault: str, rank: str) -> str:
        """From now on what the loader of the worker of this rank is given has a fault; "" ends that."""
        model = self.get_model()
        vars(model).pop("load_weights", None)
        if fault and self.rank == int(rank):
            load = model.load_weights
            model.load_weights = lambda tensors: load(_FAULTS[fault](list(tensors)))
        return fault


def tensors_of(model: Any) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Each tensor that layers, and what is beside them, keep, but KV; a shared one under each name.

    Of a layer's experts, which are one tensor, each is there by its number too.
    """
    for place, layer in model.named_modules():
        kept = {**layer._parameters, **layer._buffers}
        for name, tensor in kept.items():
            if tensor is not None:
                kind = PARAMETER if name in layer._parameters else BUFFER
                yield f"{place}.{name}", kind, tensor
                if tensor.dim() == EXPERTS_DIMENSIONS:
                    yield from ((f"{place}.{name}.{number}", kind, part) for number, part in enumerate(tensor))
        yield from _derived(place, layer, set(kept), 0)


def _derived(place: str, owner: Any, known: set[str], depth: int) -> Iterator[tuple[str, str, torch.Tensor]]:
    for name, value in getattr(owner, "__dict__", {}).items():
        if isinstance(value, torch.Tensor) and name not in known and name != KV:
            yield f"{place}.{name}", DERIVED, value
        elif name in BESIDE and depth < len(BESIDE):
            yield from _derived(f"{place}.{name}", value, set(), depth + 1)


def digest_of(tensor: torch.Tensor) -> str:
    """Of its elements in their order. Bytes come as they lie: a device that computes nothing puts no view in order."""
    stored = tensor.detach().untyped_storage().cpu()
    held = torch.empty(0, dtype=tensor.dtype).set_(stored, tensor.storage_offset(), tensor.size(), tensor.stride())
    return hashlib.sha256(held.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


Tensors = list[tuple[str, torch.Tensor]]


def _other_byte(tensors: Tensors) -> Tensors:
    name, tensor = tensors[-1]
    changed = tensor.clone()
    changed.view(torch.uint8).flatten()[-1] ^= 1 << 6
    return [*tensors[:-1], (name, changed)]


def _left_out(tensors: Tensors) -> Tensors:
    return tensors[:-1]


def _swapped(tensors: Tensors) -> Tensors:
    other = {".experts.0.": ".experts.1.", ".experts.1.": ".experts.0."}

    def renamed(name: str) -> str:
        return next((name.replace(part, put) for part, put in other.items() if part in name), name)

    return [(renamed(name), tensor) for name, tensor in tensors]


_FAULTS = {BYTE: _other_byte, LEFT_OUT: _left_out, SWAPPED: _swapped}
