"""What every page must hold: for each token, layer and head a digest of all the prompt up to that token.

What a prompt has beside its tokens counts: images, the adapter, and the salt of its tenant. In truth no KV depends on a
salt; here it does, so that a page of one tenant in another one's prompt shows.

So a page has one right content, and KV of other tokens, of another position, layer or head, or not yet written, shows.
"""

from __future__ import annotations

import ctypes
import mmap
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

BLOCK_TOKENS = 16
LAYERS = tuple(f"model.layers.{index}.self_attn.attn" for index in range(3))
HEADS = 2
TOKENS_MAX = 8192
VOCABULARY = 32_000
NEVER_WRITTEN = 0xEEEE_EEEE_EEEE_EEEE
GONE = 0xDEAD_DEAD_DEAD_DEAD
_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)

_MODULUS = 1 << 64
_FACTOR = 0x9E37_79B9_7F4A_7C15
_MIX = 0xD6E8_FEB8_6659_FD93


def _powers(factor: int) -> np.ndarray:
    powers, value = np.empty(TOKENS_MAX, dtype=np.uint64), 1
    for index in range(TOKENS_MAX):
        powers[index] = value
        value = value * factor % _MODULUS
    return powers


_POWERS, _INVERSES = _powers(_FACTOR), _powers(pow(_FACTOR, -1, _MODULUS))
_KEYS = _powers(0xA076_1D64_78BD_642F)[1 : 1 + len(LAYERS) * HEADS].reshape(len(LAYERS), HEADS)


@dataclass(frozen=True)
class Beside:
    """What a prompt has beside its tokens."""

    salt: str = ""
    lora: str = ""
    images: tuple[tuple[int, int, str], ...] = ()
    """First token, length in tokens, content."""


TOKENS_ONLY = Beside()


def digests(tokens: Sequence[int], beside: Beside = TOKENS_ONLY, weights: str = "") -> np.ndarray:
    """``digests(t)[i]`` depends on ``t[0..i]``, on what lies beside these tokens, on the weights' name, and on nothing
    else."""
    numbers = np.asarray(tokens, dtype=np.uint64) + np.uint64(1)
    for offset, length, content in beside.images:
        place = numbers[offset : offset + length]
        place[:] = np.arange(len(place), dtype=np.uint64) + np.uint64(VOCABULARY + 1 + zlib.crc32(content.encode()))
    names = beside.salt, beside.lora, *filter(None, [weights])
    start = zlib.crc32(" ".join(names).encode()) if any(names) else 0
    sums = np.cumsum(numbers * _INVERSES[: len(numbers)], dtype=np.uint64) + np.uint64(start)
    return sums * _POWERS[: len(numbers)]


def next_token(digest: int, salt: int) -> int:
    """What the model says after tokens with that digest; requests with other salts say other things."""
    return ((digest ^ salt) * _MIX % _MODULUS >> 40) % VOCABULARY


class KvPages:
    """The KV cache of one rank: all layers in one allocation, heads outermost in a page.

    As in vLLM, layers of different groups lie in the same place: no two groups use a block at once.
    """

    def __init__(self, block_count: int, tp_rank: int, tp_size: int, places: Sequence[int]) -> None:
        """``places`` says of each layer where in the allocation it lies, counted in layers."""
        self._heads = slice(tp_rank * HEADS // tp_size, (tp_rank + 1) * HEADS // tp_size)
        heads = HEADS // tp_size
        shape = (1 + max(places), block_count, heads, BLOCK_TOKENS)
        storage = self._storage = torch.zeros(int(np.prod(shape)) * 8, dtype=torch.int8)
        self._allocated = storage.numpy().view(np.uint64).reshape(shape)
        self._allocated[:] = np.uint64(NEVER_WRITTEN)
        self._words = [self._allocated[place] for place in places]
        per_layer = storage.view(torch.float32).view(*shape, 2)
        self.tensors = {name: per_layer[place] for name, place in zip(LAYERS, places, strict=True)}

    def vanish(self) -> None:
        """The memory is gone: an access ends the process, but for what shares a page of memory with something else."""
        self._allocated[:] = np.uint64(GONE)
        self._protect(_NO_ACCESS)

    def come_back(self) -> bool:
        """The memory is there again, with any content; whether nothing was written to it meanwhile."""
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        untouched = bool((self._allocated == np.uint64(GONE)).all())
        self._allocated[:] = np.uint64(NEVER_WRITTEN)
        return untouched

    def _protect(self, access: int) -> None:
        first = -(-self._storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (self._storage.data_ptr() + self._storage.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0 and _LIBC.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(length), access):
            raise OSError(ctypes.get_errno(), "mprotect")

    def write(self, layer: int, blocks: np.ndarray, first: int, right: np.ndarray) -> None:
        """The KV of the tokens from ``first`` on, whose digests are ``right``."""
        at = np.arange(first, first + len(right))
        self._words[layer][blocks[at // BLOCK_TOKENS], :, at % BLOCK_TOKENS] = (
            right[:, None] ^ _KEYS[layer, self._heads]
        )

    def write_state(self, layer: int, slot: int, digest: int) -> None:
        """The state of a layer after a token with that digest: it fills the slot."""
        self._words[layer][slot] = (np.uint64(digest) ^ _KEYS[layer, self._heads])[:, None]

    def holds_state(self, layer: int, slot: int, digest: int) -> bool:
        """Whether the slot holds the state after a token with that digest."""
        return bool((self._words[layer][slot] == (np.uint64(digest) ^ _KEYS[layer, self._heads])[:, None]).all())

    def wrong_at(
        self, layer: int, blocks: Sequence[int], first: int, right: np.ndarray, older: Sequence[np.ndarray] = ()
    ) -> int | None:
        """The first token from ``first`` on whose KV is not what it must be; ``right`` are the digests of all.

        Or those of ``older`` weights, of which some may still be there.
        """
        at = np.arange(first, len(right))
        seen = self._words[layer][np.asarray(blocks)[at // BLOCK_TOKENS], :, at % BLOCK_TOKENS]
        wrong = np.ones(len(at), dtype=bool)
        for each in (right, *older):
            wrong &= (seen != (each[first:, None] ^ _KEYS[layer, self._heads])).any(axis=1)
        return first + int(wrong.argmax()) if wrong.any() else None

    def digest_at(self, layer: int, block: int, offset: int) -> int:
        """What the page says the digest is."""
        return int(self._words[layer][block, 0, offset] ^ _KEYS[layer, self._heads.start])

    def describe(self, layer: int, block: int, offset: int) -> str:
        """For a report."""
        word = int(self._words[layer][block, 0, offset])
        return "never written" if word == NEVER_WRITTEN else f"{word:#018x}"
