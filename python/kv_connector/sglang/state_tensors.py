"""The formats of SGLang's state tensors, of which SGLang tells a backend the addresses and lengths only.

Slots of equal length may have different number formats on the two sides (``--mamba-ssm-dtype``) or a different order:
on a CPU with AMX, SGLang transposes the inputs of convolutions. So each side describes its tensors, and sides with
different descriptions refuse each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector.exceptions import OptionError


class StateTensors:
    """The formats of the state tensors of all pools of this process, by address."""

    def __init__(self) -> None:
        self._formats: dict[int, str] = {}

    def note(self, pool: Any) -> None:
        """Records the tensors that a pool offers to backends."""
        for _field, tensor, _axis, _layer in pool._iter_transfer_state_entries():
            self._formats[tensor.data_ptr()] = _format(tensor)

    def formats(self, addresses: Sequence[int]) -> list[str]:
        """The format of a slot of the tensor at each address. Raises OptionError if one is unknown."""
        unknown = sum(not self._formats.get(address) for address in addresses)
        if unknown:
            raise OptionError(
                f"{unknown} of {len(addresses)} tensors of state are not in SGLang's MambaPool with slots that are one"
                " run of bytes, expected that all are: start without --enable-unified-memory"
            )
        return [self._formats[address] for address in addresses]


def _format(tensor: Any) -> str:
    """The format of one slot; "" if slots are not contiguous."""
    slot = tensor[0]
    if tensor.stride(0) != slot.numel():
        return ""
    dtype = str(tensor.dtype).removeprefix("torch.")
    order = "" if slot.is_contiguous() else f" by {list(slot.stride())}"
    return f"{dtype}{list(slot.shape)}{order}"


STATE_TENSORS = StateTensors()
"""The one of this process: SGLang describes its pools before the endpoint exists."""


def note_tensors(_result: Any, pool: Any) -> None:
    """Runs after ``MambaPool.get_contiguous_buf_infos``, with which SGLang describes its pool to a backend."""
    from sglang.srt.runtime_context import get_disagg

    from kv_connector.sglang import BACKEND_NAME

    if get_disagg().disaggregation_transfer_backend == BACKEND_NAME:
        STATE_TENSORS.note(pool)
