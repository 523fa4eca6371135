"""Requests and blocks, as much of vLLM's as a connector reads and as the simulated scheduler keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from release import Status

BLOCK_TOKENS = 128


@dataclass(eq=False)
class SimulatedRequest:
    """As much of a vLLM request as the connector reads, and what the simulated scheduler keeps."""

    request_id: str
    num_prompt_tokens: int
    kv_transfer_params: Any
    max_tokens: int
    cached_tokens: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    output_tokens: int = 0
    was_scheduled: bool = False
    has_run: bool = False
    cache_salt: str | None = None
    priority: int = 0
    abort_immediately: bool = False
    lora_request: Any = None
    mm_features: Any = None
    sampling_params: Any = None
    skip_reading_prefix_cache: bool = False
    """As with prompt_logprobs: the engine computes the whole prompt, whatever a connector has."""

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(range(self.num_prompt_tokens))

    @property
    def block_hashes(self) -> list[bool]:
        """Of each whole block of the prompt, whether the engine's cache has it."""
        cached = self.cached_tokens // BLOCK_TOKENS
        return [block < cached for block in range(self.num_prompt_tokens // BLOCK_TOKENS)]

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.output_tokens

    @property
    def is_finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


class SimulatedBlockPool:
    """As much of vLLM's pool as a connector may use, and what its scheduler does with it. Blocks are their ids."""

    def __init__(self, block_count: int) -> None:
        self.blocks = range(block_count)
        self.free = list(reversed(self.blocks))
        self._references = [0] * block_count

    def take(self, count: int) -> list[int]:
        taken = [self.free.pop() for _ in range(count)]
        self.touch(taken)
        return taken

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def get_new_blocks(self, count: int) -> list[SimpleNamespace]:
        """vLLM's blocks are objects; a connector may name them by their ids."""
        if count > len(self.free):
            raise ValueError(f"Cannot get {count} free blocks from the pool")
        return [SimpleNamespace(block_id=block) for block in self.take(count)]

    def get_cached_block(self, block_hash: bool, group_ids: list[int]) -> list[None] | None:
        """Blocks of the prefix cache, which have no ids here; see ``SimulatedRequest.block_hashes``."""
        return [None] * len(group_ids) if block_hash else None

    def touch(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert block not in self.free, "a block is touched that may have been taken meanwhile"
            self._references[block] += 1

    def free_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._references[block] -= 1
            assert self._references[block] >= 0
            if self._references[block] == 0:
                self.free.append(block)
