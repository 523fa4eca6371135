"""The formats of SGLang's state tensors, of which SGLang tells a backend the addresses and lengths only.

Slots of equal length may have different number formats on the two sides (``--mamba-ssm-dtype``) or a different order:
on a CPU with AMX, SGLang transposes the inputs of convolutions. So each side describes its tensors, and sides with
different descriptions refuse each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """What one tensor holds of a request: numbers in one run of bytes."""

    number_format: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """() = those of a tensor in C order."""
    convolution: bool
    """Whether these are inputs of a convolution, which SGLang may have put together from several."""
    layer: int
    """Its number in the whole model."""

    def __str__(self) -> str:
        order = f" by {list(self.strides)}" if self.strides else ""
        return f"{self.number_format}{list(self.shape)}{order}"


class StateTensors:
    """The formats of the state tensors of all pools of this process, by address."""

    def __init__(self) -> None:
        self._formats: dict[int, SlotFormat | None] = {}

    def note(self, pool: Any) -> None:
        """Records the tensors that a pool offers to backends."""
        for field, tensor, _axis, layer in pool._iter_transfer_state_entries():
            self._formats[tensor.data_ptr()] = _format(field, tensor, layer)

    def formats(self, addresses: Sequence[int]) -> list[SlotFormat]:
        """The format of a slot of the tensor at each address. Raises OptionError if one is unknown."""
        known = [found for address in addresses if (found := self._formats.get(address)) is not None]
        if len(known) == len(addresses):
            return known
        raise OptionError(
            f"{len(addresses) - len(known)} of {len(addresses)} tensors of state are not in SGLang's MambaPool with"
            " slots that are one run of bytes, expected that all are: start without --enable-unified-memory"
        )


def _format(field: str, tensor: Any, layer: int) -> SlotFormat | None:
    """The format of one slot; None if slots are not contiguous."""
    slot = tensor[0]
    if tensor.stride(0) != slot.numel():
        return None
    number_format = str(tensor.dtype).removeprefix("torch.")
    strides = () if slot.is_contiguous() else tuple(slot.stride())
    return SlotFormat(number_format, tuple(slot.shape), strides, field == "conv", layer)


STATE_TENSORS = StateTensors()
"""The one of this process: SGLang describes its pools before the endpoint exists."""


def note_tensors(_result: Any, pool: Any) -> None:
    """Runs after ``MambaPool.get_contiguous_buf_infos``, with which SGLang describes its pool to a backend."""
    from sglang.srt.runtime_context import get_disagg

    from kv_connector.sglang import BACKEND_NAME

    if get_disagg().disaggregation_transfer_backend == BACKEND_NAME:
        STATE_TENSORS.note(pool)
