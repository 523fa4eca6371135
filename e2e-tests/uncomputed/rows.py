"""Which rows of KV each step of a vLLM reads and writes: what `rows.c` compares and writes at each attention layer.

Every token that is sampled is TOKEN, since nothing computes another.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import torch

TOKEN = 5
BLOCK_TOKENS = 16
PARTS = 2
"""Keys and values."""


class _Layer(ctypes.Structure):
    _fields_ = [
        ("keys", ctypes.c_uint64),
        *[
            (name, ctypes.c_int64)
            for name in (
                *("value_offset", "block_stride", "token_stride", "head_stride", "head_bytes", "head_count"),
                *("block_tokens", "number", "once"),
            )
        ],
    ]


@dataclass
class _Request:
    prompt: list[int]
    blocks: list[int]
    computed: int = 0

    def token(self, position: int) -> int:
        return self.prompt[position] if position < len(self.prompt) else TOKEN

    def slot(self, position: int) -> int:
        return self.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS


@dataclass
class Rows:
    """One thread, the engine's; what it queues runs on the stand-in's threads."""

    library: ctypes.CDLL
    sampled: dict[str, int] = field(default_factory=dict)
    """How many tokens each request of the latest step samples."""
    _requests: dict[str, _Request] = field(default_factory=dict)
    _layers: dict[int, int] = field(default_factory=dict)
    """Numbers of layers by the addresses of their keys, in the order of the pass."""

    def begin_step(self, scheduled: Any) -> None:
        """Of what vLLM's scheduler hands to the model runner; a warm-up's requests have no rows."""
        self._take(scheduled)
        parts = [
            (name, self._requests[name], count)
            for name, count in scheduled.num_scheduled_tokens.items()
            if name in self._requests
        ]
        begins = [request.computed for _, request, _ in parts]
        ends = [request.computed + count for _, request, count in parts]
        slots = [request.slot(at) for (_, request, _), end in zip(parts, ends, strict=True) for at in range(end)]
        tokens = [request.token(at) for (_, request, _), end in zip(parts, ends, strict=True) for at in range(end)]
        self._called(
            self.library.rowsBeginStep(
                _stream(),
                ctypes.c_int64(len(parts)),
                (ctypes.c_int64 * len(parts))(*begins),
                (ctypes.c_int64 * len(parts))(*ends),
                (ctypes.c_int64 * len(slots))(*slots),
                (ctypes.c_int32 * len(tokens))(*tokens),
            )
        )
        self.sampled = {
            name: int(end >= len(request.prompt)) for (name, request, _), end in zip(parts, ends, strict=True)
        }

    def _take(self, scheduled: Any) -> None:
        for name in scheduled.finished_req_ids:
            self._requests.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            prompt = new.prefill_token_ids or new.prompt_token_ids
            self._requests[new.req_id] = _Request(list(prompt), list(new.block_ids[0]), new.num_computed_tokens)
        cached = scheduled.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            request = self._requests[name]
            if name in cached.resumed_req_ids:
                request.blocks.clear()
            request.blocks.extend(blocks[0] if blocks else [])
            request.computed = computed

    def layer(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Shapes (blocks, tokens of a block, heads, head size), with any strides but the last."""
        size = keys.element_size()
        block, token, head, _ = (stride * size for stride in keys.stride())
        described = _Layer(
            keys=keys.data_ptr(),
            value_offset=values.data_ptr() - keys.data_ptr(),
            block_stride=block,
            token_stride=token,
            head_stride=head,
            head_bytes=keys.shape[3] * size,
            head_count=keys.shape[2],
            block_tokens=keys.shape[1],
            number=self._layers.setdefault(keys.data_ptr(), len(self._layers)),
        )
        self._called(self.library.rowsLayer(_stream(), ctypes.byref(described)))

    def figures(self) -> dict[str, Any]:
        counts = [ctypes.c_int64() for _ in range(3)]
        first = ctypes.create_string_buffer(200)
        self.library.rowsFigures(*map(ctypes.byref, counts), first, ctypes.c_size_t(len(first)))
        read, written, wrong = (count.value for count in counts)
        return {"rows_read": read, "rows_written": written, "rows_wrong": wrong, "first_wrong": first.value.decode()}

    @staticmethod
    def _called(result: int) -> None:
        if result:
            raise RuntimeError(f"the stand-in refused a host function with code {result}")


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
