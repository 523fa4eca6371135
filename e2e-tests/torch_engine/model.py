"""A small transformer whose weights are drawn from a seed, alike in every process and on every device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_engine.plan import ModelShape

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values), each [rows, tokens, heads, head size]: keeps keys and values, attends to all kept."""

EPSILON = 1e-6


class Model:
    """float32. Called by the engine's thread; holds nothing but weights, so that a pass may be captured as a graph."""

    def __init__(self, shape: ModelShape, device: str) -> None:
        self.shape = shape
        drawn = torch.Generator().manual_seed(shape.seed)

        def weight(rows: int, columns: int) -> Tensor:
            return (torch.randn(rows, columns, generator=drawn) * rows**-0.5).to(device)

        self._embedding = torch.randn(shape.vocabulary, shape.hidden, generator=drawn).to(device)
        kept = shape.kv_heads * shape.head_size
        asked = shape.heads * shape.head_size
        self._layers = [
            {
                "qkv": weight(shape.hidden, asked + 2 * kept),
                "out": weight(asked, shape.hidden),
                "up": weight(shape.hidden, 2 * shape.inner),
                "down": weight(shape.inner, shape.hidden),
            }
            for _ in range(shape.layers)
        ]
        self._head = weight(shape.hidden, shape.vocabulary)
        halves = torch.arange(shape.head_size // 2, dtype=torch.float32, device=device)
        self._frequencies = 10000.0 ** (-2.0 * halves / shape.head_size)

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states of [rows, tokens]."""
        shape = self.shape
        rows, count = tokens.shape
        states = self._embedding[tokens]
        asked, kept = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        for layer, weights in enumerate(self._layers):
            mixed = normed(states) @ weights["qkv"]
            queries, keys, values = (
                part.view(rows, count, -1, shape.head_size) for part in mixed.split([asked, kept, kept], dim=-1)
            )
            seen = attend(layer, self._turned(queries, positions), self._turned(keys, positions), values)
            states = states + seen.reshape(rows, count, asked) @ weights["out"]
            gate, up = (normed(states) @ weights["up"]).chunk(2, dim=-1)
            states = states + (torch.nn.functional.silu(gate) * up) @ weights["down"]
        return normed(states)

    def next_tokens(self, states: Tensor) -> Tensor:
        """The likeliest, of states [rows, hidden]."""
        return (states @ self._head).argmax(dim=-1)

    def _turned(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding."""
        angles = positions[..., None].float() * self._frequencies
        sine, cosine = angles.sin()[:, :, None, :], angles.cos()[:, :, None, :]
        first, second = vectors.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def normed(states: Tensor) -> Tensor:
    return states * torch.rsqrt(states.square().mean(dim=-1, keepdim=True) + EPSILON)


def attention(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Grouped queries [rows, tokens, heads, size] over [rows, kept, kv heads, size]; visible: [rows, tokens, kept]."""
    groups = queries.shape[2] // keys.shape[2]
    keys, values = (each.repeat_interleave(groups, dim=2) for each in (keys, values))
    scores = torch.einsum("rthd,rkhd->rhtk", queries, keys) * queries.shape[-1] ** -0.5
    scores = scores.masked_fill(~visible[:, None], float("-inf"))
    return torch.einsum("rhtk,rkhd->rthd", scores.softmax(dim=-1), values)


def plain_answer(model: Model, prompt: list[int], count: int, device: str = "cpu") -> list[int]:
    """What the model answers without pages, chunks, a cache or a scheduler: each token computes all before it."""
    tokens = list(prompt)
    for _ in range(count):
        given = torch.tensor([tokens], device=device)
        positions = torch.arange(len(tokens), device=device)[None]
        visible = positions[0][:, None] >= positions[0][None]

        def attend(_: int, queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor = visible[None]) -> Tensor:
            return attention(queries, keys, values, visible)

        tokens.append(int(model.next_tokens(model(given, positions, attend)[:, -1])[0]))
    return tokens[len(prompt) :]
