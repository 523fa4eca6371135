"""Blocks of the KV cache: who holds them, and what they hold of which prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NULL_BLOCK = 0
Chain = int
"""Names a block's tokens and all before them."""


@dataclass(eq=False)
class Block:
    block_id: int
    references: int = 0
    chain: Chain | None = None


class BlockPool:
    """Gives out blocks, the longest unused first. A full block keeps its KV when it is given back, until it is taken.

    As in vLLM a block is named when the pass that fills it is planned: another request may find it before it is filled.
    The engine's thread only.
    """

    def __init__(self, count: int) -> None:
        self.blocks = [Block(index) for index in range(count)]
        self.blocks[NULL_BLOCK].references = 1
        self._free: dict[Block, None] = dict.fromkeys(self.blocks[1:])
        self._cached: dict[Chain, Block] = {}

    @property
    def free_count(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[Block]:
        """Raises IndexError where there are not as many."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks are wanted and {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block = next(iter(self._free))
            del self._free[block]
            if block.chain is not None:
                self._cached.pop(block.chain, None)
                block.chain = None
            block.references = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Iterable[Block]) -> None:
        """One more holder."""
        for block in blocks:
            self._free.pop(block, None)
            block.references += 1

    def free_blocks(self, blocks: Iterable[Block]) -> None:
        """One holder less."""
        for block in blocks:
            block.references -= 1
            assert block.references >= 0, f"block {block.block_id} was given back twice"
            if block.references == 0:
                self._free[block] = None

    def find(self, chains: Sequence[Chain]) -> list[Block]:
        """Blocks that hold the beginning of a prompt, or will when the passes planned so far are over."""
        found = []
        for chain in chains:
            if (block := self._cached.get(chain)) is None:
                break
            found.append(block)
        return found

    def name(self, blocks: Sequence[Block], chains: Sequence[Chain]) -> None:
        """These blocks hold, or are about to hold, what the chains name."""
        for block, chain in zip(blocks, chains, strict=True):
            if block.chain is None and chain not in self._cached:
                block.chain = chain
                self._cached[chain] = block


def chains_of(tokens: Sequence[int], block_tokens: int) -> list[Chain]:
    """Of all full blocks of a prompt."""
    chains: list[Chain] = []
    for end in range(block_tokens, len(tokens) + 1, block_tokens):
        before = chains[-1] if chains else None
        chains.append(hash((before, *tokens[end - block_tokens : end])))
    return chains
