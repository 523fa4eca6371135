"""A CUDA that computes, slowly: what torch's operators would do on the device the host does, in the stream's order.

For engines of plain torch. An operator is called as it is, so that its result has its memory and its kernels do
nothing, and behind it the stream, or the graph that is being captured, gets a function of the host that computes the
same on the very bytes of the device's memory. So graphs compute again at each replay, and a page is complete when the
stream has come so far. Not for Triton's kernels, nor for operators whose results have a length that follows from
numbers.

Any thread may enter the mode, and each has to.
"""

from __future__ import annotations

import ctypes
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
HOST = torch.device("cpu")
WITHOUT_KERNELS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.record_stream.default}
CYCLES_IN_A_MICROSECOND = 2000
SWITCH_SECONDS = 0.0001
"""After which a thread that runs gives the interpreter to a stream's: by default each operation would wait for 5 ms of
a check that polls."""
_driver = ctypes.CDLL("libcuda.so.1")
_driver.standInBytes.restype = ctypes.c_void_p
_driver.standInBytes.argtypes = (ctypes.c_uint64, ctypes.c_size_t)
_runtime = ctypes.CDLL("libcudart.so.13")
_runtime.cudaLaunchHostFunc.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_queued: list[Any] = []
"""Functions live as long as the process: a graph may run them again at any time."""


class ByHost(TorchDispatchMode):  # type: ignore[misc, unused-ignore]
    """Of the thread that enters it."""

    def __torch_dispatch__(self, operator: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        result = operator(*given, **named)
        results, inputs = _tensors(result), _tensors((given, named))
        if any(each.is_cuda for each in results + inputs) and not _is_without_kernel(operator, given, named, results):
            _compute_behind(operator, given, named, results)
        return result


def enter() -> None:
    """For as long as the process lives."""
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.cuda._sleep = _sleep
    ByHost().__enter__()


def _tensors(of: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(of) if isinstance(each, torch.Tensor)]


def _is_without_kernel(operator: Any, given: Any, named: dict[str, Any], results: list[torch.Tensor]) -> bool:
    """A view, memory as it is, or a copy that the runtime makes."""
    if operator in WITHOUT_KERNELS or "empty" in operator.__name__:
        return True
    if operator is torch.ops.aten.copy_.default:
        return _is_plain(*given[:2])
    if operator._schema.is_mutable or not results or not _tensors(given):
        return False
    source = _tensors(given)[0]
    if all(_is_of(each, source) for each in results):
        return True
    moves = operator._schema.name in ("aten::to", "aten::_to_copy")
    return moves and _is_plain(results[0], source)


def _is_of(view: torch.Tensor, whole: torch.Tensor) -> bool:
    addresses = [each.untyped_storage().data_ptr() for each in (view, whole)]
    return bool(view.device == whole.device and addresses[0] == addresses[1])


def _is_plain(to: torch.Tensor, source: torch.Tensor) -> bool:
    """A copy that needs no kernel."""
    is_dense = to.is_contiguous() and source.is_contiguous()
    return bool(is_dense and to.dtype == source.dtype and to.shape == source.shape)


def _compute_behind(operator: Any, given: Any, named: dict[str, Any], results: list[torch.Tensor]) -> None:
    own_given, own_named = tree_map_only(torch.Tensor, as_host_memory, (given, named))
    own_given, own_named = tree_map_only(torch.device, lambda _: HOST, (own_given, own_named))
    targets = [] if operator._schema.is_mutable else [as_host_memory(each) for each in results]

    def compute() -> None:
        for target, each in zip(targets, _tensors(operator(*own_given, **own_named)), strict=False):
            target.copy_(each)

    queue(compute)
    if not all(each.is_cuda for each in results):
        torch.cuda.current_stream().synchronize()


def as_host_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes, as the host sees them."""
    if not tensor.is_cuda:
        return tensor
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    length_bytes = extent * tensor.element_size()
    address = _driver.standInBytes(tensor.data_ptr(), length_bytes)
    if address is None:
        raise RuntimeError(f"{length_bytes} bytes at {tensor.data_ptr():#x} are no memory of the device")
    memory = (ctypes.c_char * length_bytes).from_address(address)
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def queue(compute: Callable[[], None]) -> None:
    """Behind what the current stream has, or into the graph that is being captured from it."""
    function = Function(partial(_run, compute))
    _queued.append(function)
    stream = torch.cuda.current_stream().cuda_stream
    status = _runtime.cudaLaunchHostFunc(stream, ctypes.cast(function, ctypes.c_void_p), None)
    if status:
        raise RuntimeError(f"cudaLaunchHostFunc answered {status}")


def _run(compute: Callable[[], None], _: Any) -> None:
    """On a thread of the stream's. What goes wrong there is printed: the numbers are wrong then, and found so."""
    try:
        with torch.inference_mode():
            compute()
    except BaseException:
        traceback.print_exc()


def _sleep(cycles: int) -> None:
    """The stream does nothing for that time. The host's own function: it wants no interpreter."""
    pause = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    _runtime.cudaLaunchHostFunc(torch.cuda.current_stream().cuda_stream, pause, cycles // CYCLES_IN_A_MICROSECOND)
