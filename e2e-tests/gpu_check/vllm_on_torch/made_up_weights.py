"""Weights that no file has: equal in every process, and so spread that tokens vary with all that is before them."""

from __future__ import annotations

import itertools
from typing import Any

SPREAD = 0.04
"""Uniform in both directions, as wide as the normal one of 0.02 that Llamas begin their training with."""


def make_up() -> None:
    """From now on vLLM's load format "dummy" makes these, instead of values so small that nothing depends on them."""
    from vllm.model_executor.model_loader import dummy_loader

    seeds = itertools.count(1)

    def filled(weights: Any) -> None:
        import torch

        if not torch.is_floating_point(weights) or weights.dim() == 0:
            return
        if weights.dim() == 1:
            weights.data.fill_(1.0)  # a norm's
            return
        generator = torch.Generator(device=weights.device)
        generator.manual_seed(next(seeds))
        weights.data.uniform_(-SPREAD, SPREAD, generator=generator)

    dummy_loader.initialize_single_dummy_weight = filled
