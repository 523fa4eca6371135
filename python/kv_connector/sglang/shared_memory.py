"""SGLang's pools and metadata in memory that other processes of this host can map, so that ``shm`` reaches them.

SGLang allocates them with ``torch.zeros`` without calling the backend first. So two hooks wrap the functions that
allocate, in which such calls return mappings of memfds. If a mapping fails, torch allocates the memory, which is then
sent over ``tcp``. For a GPU's memory see ``device_side``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.memory.memfd import map_memfd
from kv_connector.memory.torch_functions import TorchFunctionMode
from kv_connector.sglang.allocations import ALLOCATIONS, Allocation

logger = logging.getLogger("sglang.srt.kv_messenger")


class SharedZeros(TorchFunctionMode):
    """A context in which ``torch.zeros`` in host memory returns memory that other processes can map."""

    def __init__(self, torch: Any) -> None:
        super().__init__()
        self._torch = torch
        self._possible = True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replaces an allocation; torch calls this for every function."""
        named = dict(kwargs or {})
        if func is self._torch.zeros and self._possible:
            shape = _shape(args, named)
            dtype = named.get("dtype") or self._torch.get_default_dtype()
            if shape and all(shape) and self._in_host_memory(named):
                try:
                    return self._mapped(shape, dtype)
                except OSError as fault:
                    self._possible = False
                    logger.warning("KV memory cannot be shared with other processes (%s): shm is not offered", fault)
        return func(*args, **named)

    def _in_host_memory(self, named: Mapping[str, Any]) -> bool:
        others = named.keys() - {"dtype", "device", "size"}
        device = named.get("device") or self._torch.get_default_device()
        return not others and self._torch.device(device).type == "cpu"

    def _mapped(self, shape: tuple[int, ...], dtype: Any) -> Any:
        length_bytes: int = functools.reduce(operator.mul, shape, dtype.itemsize)
        memfd, memory = map_memfd(length_bytes)
        flat = self._torch.frombuffer(memory, dtype=self._torch.uint8)  # keeps the mapping alive
        allocation = Allocation(flat.data_ptr(), length_bytes, memfd)
        ALLOCATIONS.append(allocation)
        weakref.finalize(memory, _forget, allocation)
        return flat.view(dtype).view(shape)


def _forget(allocation: Allocation) -> None:
    """Called before a tensor's memory is freed: the next allocation at its address is a different one."""
    ALLOCATIONS.remove(allocation)
    os.close(allocation.memfd)


def _shape(args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape requested from ``torch.zeros``, as numbers or as one sequence; () if the call has another form."""
    given = args or (named.get("size", ()),)
    sizes = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    return tuple(int(size) for size in sizes)


def allocate_shared(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Wraps the allocation of pools or metadata, in an engine that uses this backend."""
    from sglang.srt.runtime_context import get_device, get_disagg

    from kv_connector.sglang import BACKEND_NAME

    if get_disagg().disaggregation_transfer_backend != BACKEND_NAME:
        return original(*args, **named)
    import torch

    with SharedZeros(torch), _on_device(torch) if get_device().device != "cpu" else contextlib.nullcontext():
        return original(*args, **named)


def _on_device(torch: Any) -> contextlib.AbstractContextManager[Any]:
    """The allocation context of an engine on a GPU; raises OptionError if the device is not supported."""
    from sglang.srt.runtime_context import get_device, get_disagg, get_exec

    from kv_connector.sglang import engine_facts, refusals
    from kv_connector.sglang.device_side import DEVICE

    if get_exec().features.enable_memory_saver:
        logger.info("KV memory is SGLang's own, which --enable-memory-saver gives back: cuda does not reach it")
        return contextlib.nullcontext()
    options = engine_facts.early_options(get_disagg().disaggregation_mode)
    refusals.refuse_device(get_device().device, options.gpu)
    return DEVICE.allocating(options, torch)
