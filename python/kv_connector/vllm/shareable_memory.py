"""KV memory that other processes of this host can map: the engine's KV cache is allocated in a memfd.

vLLM allocates the KV cache inside a context that the connector provides. In it, the one call
``torch.zeros(n, dtype=torch.int8)`` that allocates the backing buffer returns a mapping of a memfd. All other calls are
unchanged, and so is this one if the mapping fails. For KV in host memory only.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kv_connector.memory.memfd import map_memfd
from kv_connector.memory.torch_functions import TorchFunctionMode


class ShareableAllocation(TorchFunctionMode):
    """A context for one allocation. The memory is never freed: the engine keeps its KV cache until the process ends."""

    def __init__(self, torch: Any, logger: logging.Logger) -> None:
        super().__init__()
        self._torch = torch
        self._logger = logger
        self._memory: mmap.mmap | None = None
        self._address = 0
        self.memfd = -1

    def memfd_of(self, address: int, length_bytes: int) -> int:
        """The descriptor that is mapped at this address, or -1 if the engine allocated the memory elsewhere."""
        mapped = len(self._memory) if self._memory is not None else 0
        return self.memfd if address == self._address and 0 < length_bytes <= mapped else -1

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replaces the allocation of the backing buffer; torch calls this for every function."""
        named = dict(kwargs or {})
        if func is self._torch.zeros and self._memory is None and self._is_backing_buffer(args, named):
            try:
                return self._map(int(args[0]))
            except OSError as fault:
                self._logger.warning("KV memory cannot be shared with other processes (%s): shm is not offered", fault)
        return func(*args, **named)

    def _is_backing_buffer(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        return (
            len(args) == 1
            and isinstance(args[0], int)
            and args[0] > 0
            and kwargs.get("dtype") is self._torch.int8
            and self._torch.device(kwargs.get("device") or "cpu").type == "cpu"
        )

    def _map(self, length_bytes: int) -> Any:
        memfd, memory = map_memfd(length_bytes)
        buffer = self._torch.frombuffer(memory, dtype=self._torch.int8)
        self._memory, self.memfd, self._address = memory, memfd, buffer.data_ptr()
        return buffer
