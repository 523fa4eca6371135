"""Torch's hook for all of its functions, with a type where torch is not installed. Importing it imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["TorchFunctionMode"]

if TYPE_CHECKING:

    class TorchFunctionMode:
        """Torch's hook for all of its functions while the context is active."""

        def __enter__(self) -> Any: ...
        def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None: ...

else:
    from torch.overrides import TorchFunctionMode
