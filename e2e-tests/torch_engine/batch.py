"""A pass as tensors: a row for each request, padded to one number of tokens and one number of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_engine.block_pool import NULL_BLOCK
from torch_engine.plan import EnginePlan
from torch_engine.scheduler import Request


@dataclass
class Inputs:
    """[rows, tokens], but for tables [rows, blocks] and last [rows]. What pads writes to the null block."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    tables: Tensor
    last: Tensor
    """Which of its tokens is the row's last."""

    def parts(self) -> tuple[Tensor, ...]:
        return self.tokens, self.positions, self.slots, self.tables, self.last

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        return int(self.tokens.shape[1])

    def copy_into(self, other: Inputs) -> None:
        """Into a larger one, of which what is left over is padding."""
        for own, theirs in zip(self.parts(), other.parts(), strict=True):
            theirs.zero_()
            theirs[tuple(slice(size) for size in own.shape)].copy_(own)


class Batch:
    """Makes them. The engine's thread only."""

    def __init__(self, plan: EnginePlan) -> None:
        self.plan = plan
        self.blocks_max = -(-plan.tokens_max // plan.block_tokens)
        self._keys = torch.arange(self.blocks_max * plan.block_tokens, device=plan.device)

    def of(self, rows: Sequence[tuple[Request, int]]) -> Inputs:
        """On the host."""
        width = max(count for _, count in rows)
        blocks = max(len(request.blocks) for request, _ in rows)
        made = self.empty(len(rows), width, blocks, "cpu")
        for row, (request, count) in enumerate(rows):
            first = request.num_computed_tokens
            table = torch.tensor([block.block_id for block in request.blocks])
            positions = torch.arange(first, first + count)
            made.tokens[row, :count] = torch.tensor(request.tokens[first : first + count])
            made.positions[row, :count] = positions
            size = self.plan.block_tokens
            made.slots[row, :count] = table[positions // size] * size + positions % size
            made.tables[row, : len(table)] = table
            made.last[row] = count - 1
        return made

    @staticmethod
    def empty(rows: int, width: int, blocks: int, device: str) -> Inputs:
        def zeros(*sizes: int) -> Tensor:
            return torch.full(sizes, NULL_BLOCK, dtype=torch.int64, device=device)

        return Inputs(zeros(rows, width), zeros(rows, width), zeros(rows, width), zeros(rows, blocks), zeros(rows))

    def on_device(self, given: Inputs) -> Inputs:
        return Inputs(*(each.to(self.plan.device) for each in given.parts()))

    def visible(self, positions: Tensor) -> Tensor:
        """[rows, tokens, kept tokens]: a token attends to itself and those before it."""
        return positions[..., None] >= self._keys
