"""Divides the slots of state tensors into parts that ranks of other numbers hold, too. Pure.

Each rank has a part of each state: some heads, or some channels of a convolution. SGLang says along which axis, and
which inputs of a convolution are divided by themselves (queries, keys and values lie one behind the other). The tensor
of a slot is then cut into blocks, each of them divided evenly among the ranks. So a group of state has "heads": as many
as all blocks of all ranks together can be cut into.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kv_connector.sglang.geometry import Buffer
from kv_connector.sglang.state_tensors import SlotFormat


@dataclass(frozen=True, slots=True)
class StateTensor:
    """One tensor of state of one layer, with what SGLang says of how ranks divide it."""

    buffer: Buffer
    format: SlotFormat
    divided: int | None
    """This rank's length of the axis that ranks divide; 0 = every rank has the whole tensor, None = not known."""
    rows: int
    """How many rows are before that axis, each with such a length."""
    inputs: Sequence[int]
    """The lengths, over all ranks, of what lies along that axis one behind the other; () = one thing alone."""

    @property
    def replicated(self) -> bool:
        """Whether every rank has the whole tensor."""
        return self.divided == 0

    def blocks(self, tp_size: int) -> list[int]:
        """The lengths of this rank's blocks in a row; empty if it is not known how ranks divide the tensor."""
        if not self.divided or self.format.strides or self.buffer.item_bytes % (self.divided * self.rows):
            return []
        if self.inputs:
            whole = sum(self.inputs) == self.divided * tp_size and all(one % tp_size == 0 for one in self.inputs)
            return [one // tp_size for one in self.inputs] if whole else []
        return [] if self.format.convolution else [self.divided]

    def cut(self, tp_size: int) -> list[Buffer]:
        """A buffer for each block of each row."""
        blocks = self.blocks(tp_size)
        row_bytes = self.buffer.item_bytes // self.rows
        unit_bytes = row_bytes // sum(blocks)
        cut: list[Buffer] = []
        for row in range(self.rows):
            first = row * row_bytes
            for block in blocks:
                name = f"{self.buffer.name}.{len(cut)}" if self.rows * len(blocks) > 1 else self.buffer.name
                cut.append(
                    Buffer(
                        name,
                        self.buffer.address,
                        self.buffer.length_bytes,
                        self.buffer.item_bytes,
                        first_byte=first,
                        part_bytes=block * unit_bytes,
                    )
                )
                first += block * unit_bytes
        return cut

    def whole_format(self, tp_size: int) -> str:
        """The format over all ranks, so that it is the same whatever their number."""
        shape = list(self.format.shape)
        axis = next(k for k in range(len(shape)) if math.prod(shape[:k]) == self.rows and shape[k] == self.divided)
        shape[axis] *= tp_size
        inputs = f" of {' + '.join(str(one) for one in self.inputs)}" if self.inputs else ""
        return f"{self.format.number_format}{shape}{inputs}"


def heads_of(tensors: Sequence[StateTensor], tp_size: int) -> int:
    """Into how many equal parts all blocks of all ranks can be cut; 0 = only ranks of the same number fit."""
    blocks = [tensor.blocks(tp_size) for tensor in tensors]
    if not all(blocks):
        return 0
    return math.gcd(*(block * tp_size for of_tensor in blocks for block in of_tensor))


def described(tensors: Sequence[StateTensor], formats: Sequence[str]) -> str:
    """What the layers' slots have, each way once."""
    of_layers: dict[int, list[str]] = {}
    for tensor, text in zip(tensors, formats, strict=True):
        of_layers.setdefault(tensor.format.layer, []).append(text)
    return "; ".join(dict.fromkeys(" ".join(of_layer) for of_layer in of_layers.values()))
