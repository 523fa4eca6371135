"""Which rows of KV each step of a vLLM reads and writes: what `rows.c` compares and writes at each attention layer.

Every token that is sampled is TOKEN, since nothing computes another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

TOKEN = 5
BLOCK_TOKENS = 16
FIGURES = ("rows_read", "rows_written", "rows_wrong", "states_read", "states_written")


class _Layer(ctypes.Structure):
    _fields_ = [
        ("keys", ctypes.c_uint64),
        *[
            (name, ctypes.c_int64)
            for name in (
                *("value_offset", "block_stride", "token_stride", "head_stride", "head_bytes", "head_count"),
                *("block_tokens", "number", "group", "parts", "window_tokens", "chunk_tokens", "first_head", "once"),
            )
        ],
    ]


@dataclass(frozen=True)
class Place:
    """A layer's number in the pass, its KV cache group, what a token reads (0: all), and its rank's first head."""

    number: int = 0
    group: int = 0
    window_tokens: int = 0
    chunk_tokens: int = 0
    first_head: int = 0


@dataclass(frozen=True)
class Step:
    """A request's part in a step: from `begin` to `end`; all its tokens before that end, and their slots by group."""

    begin: int
    end: int
    tokens: list[int]
    slots: list[list[int]]


@dataclass
class _Request:
    prompt: list[int]
    known: int
    """Tokens that there are: those of the prompt, and those sampled."""
    blocks: list[list[int]]
    """Of each KV cache group."""
    computed: int = 0

    def token(self, position: int) -> int:
        return self.prompt[position] if position < len(self.prompt) else TOKEN

    def slots(self, group: int, block_tokens: int, end: int) -> list[int]:
        blocks = self.blocks[group]
        return [blocks[at // block_tokens] * block_tokens + at % block_tokens for at in range(end)]


@dataclass
class Rows:
    """One thread, the engine's; what it queues runs on the stand-in's threads."""

    library: ctypes.CDLL
    groups: list[int | None] = field(default_factory=lambda: [BLOCK_TOKENS])
    """Tokens of a block by KV cache group; None: it has no rows, and a request's first block has its state if any."""
    sampled: dict[str, int] = field(default_factory=dict)
    """How many tokens each request of the latest step samples."""
    places: dict[int, Place] = field(default_factory=dict)
    """Of the layers, by the addresses of their scales; none before KV has its memory."""
    states: dict[str, Place] = field(default_factory=dict)
    """Of the layers that keep states, by their names."""
    _requests: dict[str, _Request] = field(default_factory=dict)

    def begin_step(self, scheduled: Any) -> None:
        """Of what vLLM's scheduler hands to the model runner; a warm-up's requests have no rows."""
        self._take(scheduled)
        parts = [
            (name, self._requests[name], count)
            for name, count in scheduled.num_scheduled_tokens.items()
            if name in self._requests
        ]
        steps = [self._step(request, request.computed + count) for _, request, count in parts]
        self.queue_step(steps)
        self.sampled = {}
        for (name, request, _), step in zip(parts, steps, strict=True):
            self.sampled[name] = int(step.end >= request.known)
            request.known += self.sampled[name]

    def _step(self, request: _Request, end: int) -> Step:
        slots = [
            request.blocks[group][:1] * end if block_tokens is None else request.slots(group, block_tokens, end)
            for group, block_tokens in enumerate(self.groups)
        ]
        return Step(request.computed, end, [request.token(at) for at in range(end)], slots)

    def queue_step(self, steps: list[Step]) -> None:
        """What layers do from here on in the current stream."""
        slots = [slot for group in range(len(self.groups)) for step in steps for slot in step.slots[group]]
        tokens = [token for step in steps for token in step.tokens]
        self._called(
            self.library.rowsBeginStep(
                self.stream(),
                ctypes.c_int64(len(self.groups)),
                ctypes.c_int64(len(steps)),
                (ctypes.c_int64 * len(steps))(*(step.begin for step in steps)),
                (ctypes.c_int64 * len(steps))(*(step.end for step in steps)),
                (ctypes.c_int64 * len(slots))(*slots),
                (ctypes.c_int32 * len(tokens))(*tokens),
            )
        )

    def _take(self, scheduled: Any) -> None:
        for name in scheduled.finished_req_ids:
            self._requests.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            prompt = list(new.prefill_token_ids or new.prompt_token_ids)
            blocks = [list(each) for each in new.block_ids]
            self._requests[new.req_id] = _Request(prompt, len(prompt), blocks, new.num_computed_tokens)
        cached = scheduled.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            request = self._requests[name]
            if name in cached.resumed_req_ids:
                request.blocks = [[] for _ in request.blocks]
                request.known = len(cached.all_token_ids.get(name) or range(request.known))
            for group, more in enumerate(blocks or []):
                request.blocks[group].extend(more)
            request.computed = computed

    def layer(self, keys: torch.Tensor, values: torch.Tensor | None, scale: torch.Tensor | None = None) -> None:
        """`scale` says which layer it is."""
        if keys.numel():
            self.at_place(keys, values, Place() if scale is None else self.places[scale.data_ptr()])

    def at_place(self, keys: torch.Tensor, values: torch.Tensor | None, place: Place) -> None:
        """Shapes (blocks, tokens of a block, heads, head size), with any strides but the last.

        Without `values` there is one part, as with latent KV.
        """
        size = keys.element_size()
        block, token, head, _ = (stride * size for stride in keys.stride())
        described = _Layer(
            keys=keys.data_ptr(),
            value_offset=0 if values is None else values.data_ptr() - keys.data_ptr(),
            block_stride=block,
            token_stride=token,
            head_stride=head,
            head_bytes=keys.shape[3] * size,
            head_count=keys.shape[2],
            block_tokens=keys.shape[1],
            number=place.number,
            group=place.group,
            parts=1 if values is None else 2,
            window_tokens=place.window_tokens,
            chunk_tokens=place.chunk_tokens,
            first_head=place.first_head,
        )
        self._called(self.library.rowsLayer(self.stream(), ctypes.byref(described)))

    def state(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """What a layer keeps of all tokens, after its step. Tensors are (blocks, …), a block one run of bytes."""
        if (place := self.states.get(name)) is None:
            return
        for part, tensor in enumerate(tensors):
            described = _Layer(
                keys=tensor.data_ptr(),
                block_stride=tensor.stride(0) * tensor.element_size(),
                head_bytes=tensor[0].numel() * tensor.element_size(),
                number=place.number,
                group=place.group,
                parts=part,
                first_head=place.first_head,
            )
            self._called(self.library.rowsLayer(self.stream(), ctypes.byref(described)))

    def figures(self) -> dict[str, Any]:
        counts = (ctypes.c_int64 * len(FIGURES))()
        first = ctypes.create_string_buffer(200)
        self.library.rowsFigures(counts, first, ctypes.c_size_t(len(first)))
        return dict(zip(FIGURES, counts, strict=True)) | {"first_wrong": first.value.decode()}

    @staticmethod
    def stream() -> ctypes.c_void_p:
        """In which steps and layers are queued."""
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    @staticmethod
    def _called(result: int) -> None:
        if result:
            raise RuntimeError(f"the stand-in refused a host function with code {result}")
