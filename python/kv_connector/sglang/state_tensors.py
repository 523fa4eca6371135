"""What the tensors of SGLang's states hold: SGLang tells a backend their addresses and lengths only.

Two sides may have slots of the same length with other numbers in them (``--mamba-ssm-dtype``), or in another order: on
a CPU with AMX SGLang turns its convolutions' inputs round. So each side names its tensors, and different names are
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector.exceptions import OptionError


class StateTensors:
    """Of all pools of this process, by address."""

    def __init__(self) -> None:
        self._formats: dict[int, str] = {}

    def note(self, pool: Any) -> None:
        """Remembers the tensors that a pool offers to backends."""
        for _field, tensor, _axis, _layer in pool._iter_transfer_state_entries():
            self._formats[tensor.data_ptr()] = _format(tensor)

    def formats(self, addresses: Sequence[int]) -> list[str]:
        """What the tensors at these addresses hold in a slot. Raises OptionError on one that is not known."""
        unknown = sum(not self._formats.get(address) for address in addresses)
        if unknown:
            raise OptionError(
                f"{unknown} of {len(addresses)} tensors of state are not in SGLang's MambaPool with slots that are one"
                " run of bytes, expected that all are: start without --enable-unified-memory"
            )
        return [self._formats[address] for address in addresses]


def _format(tensor: Any) -> str:
    """Of one slot; "" where the next slot does not follow at once."""
    slot = tensor[0]
    if tensor.stride(0) != slot.numel():
        return ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    order = "" if slot.is_contiguous() else f" by {list(slot.stride())}"
    return f"{dtype}{list(slot.shape)}{order}"


STATE_TENSORS = StateTensors()
"""This process's: its pools are described before the endpoint is made."""


def note_tensors(_result: Any, pool: Any) -> None:
    """After ``MambaPool.get_contiguous_buf_infos``, by which SGLang describes its pool to a backend."""
    from sglang.srt.runtime_context import get_disagg

    from kv_connector.sglang import BACKEND_NAME

    if get_disagg().disaggregation_transfer_backend == BACKEND_NAME:
        STATE_TENSORS.note(pool)
