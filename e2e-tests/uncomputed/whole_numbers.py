"""Whole numbers on a CUDA that computes nothing: torch's operators on them are computed by the host.

SGLang keeps its tables of pages on the device: which are free, and which a request has. With kernels that do nothing it
would have none. So operators all of whose tensors are of whole numbers or truth values are computed on the host, from
what the current stream has left there, and what they leave is copied back in its order. Each waits for the stream,
where a device would go on, so that steps overlap less. Nothing is computed in a capture, nor where a number with a
fraction takes part.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

WITHOUT_KERNELS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.record_stream.default}
HOST = torch.device("cpu")


class OnHost(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Of the thread that enters it."""

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        tensors = [each for each in tree_flatten((given, named))[0] if isinstance(each, torch.Tensor)]
        if not _is_computed(operator, tensors, named) or torch.cuda.is_current_stream_capturing():
            return operator(*given, **named)
        return _computed(operator, given, named)


def _is_computed(operator: Any, tensors: list[torch.Tensor], named: dict[str, Any]) -> bool:
    target = named.get("device")
    on_device = any(each.is_cuda for each in tensors)
    if not on_device and (target is None or torch.device(target).type != "cuda"):
        return False
    if any(each.is_floating_point() or each.is_complex() for each in tensors):
        return False
    if _is_fraction(named.get("dtype")) or operator.is_view or "empty" in operator.__name__:
        return False
    return not _is_plain_copy(operator, tensors, named)


def _is_fraction(dtype: torch.dtype | None) -> bool:
    return dtype is not None and (dtype.is_floating_point or dtype.is_complex)


def _is_plain_copy(operator: Any, tensors: list[torch.Tensor], named: dict[str, Any]) -> bool:
    """One that the runtime makes without a kernel."""
    if operator in WITHOUT_KERNELS:
        return True
    if operator is torch.ops.aten.copy_.default:
        first, second = tensors
        return first.dtype == second.dtype and first.shape == second.shape and all(map(_is_dense, tensors))
    if operator is torch.ops.aten._to_copy.default:
        return named.get("dtype") in {None, tensors[0].dtype} and _is_dense(tensors[0])
    return False


def _is_dense(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_contiguous())


def _computed(operator: Any, given: Any, named: dict[str, Any]) -> Any:
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor
        if id(tensor) not in copies:
            copies[id(tensor)] = tensor, on_host(tensor)
        return copies[id(tensor)][1]

    host_given, host_named = tree_map_only(torch.Tensor, copied, (given, named))
    wanted = named.get("device")
    if wanted is not None:
        host_named["device"] = HOST
    result = operator(*host_given, **host_named)
    if operator._schema.is_mutable:
        for tensor, copy in copies.values():
            write_back(tensor, copy)
    back = {id(copy): tensor for tensor, copy in copies.values()}
    device = next((tensor.device for tensor, _ in copies.values()), None)
    target = torch.device(wanted) if wanted is not None else device

    def returned(tensor: torch.Tensor) -> torch.Tensor:
        known = back.get(id(tensor))
        return known if known is not None else tensor.to(target)

    return tree_map_only(torch.Tensor, returned, result)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, made when what the current stream has before it is done."""
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return _memory_of(tensor).cpu().as_strided(tensor.shape, tensor.stride())


def write_back(tensor: torch.Tensor, copy: torch.Tensor) -> None:
    if tensor.numel():
        memory = _memory_of(tensor)
        memory.copy_(copy.as_strided(memory.shape, (1,), 0))


def _memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """From its first element to its last one, whatever lies between."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((extent,), (1,))
