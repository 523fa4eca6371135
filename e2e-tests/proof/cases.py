"""Pairs of vLLM servers whose settings are not compared: which prefillers compute what their decoder does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from make_model import (
    TinyFalconH1,
    TinyGemma,
    TinyGptOss,
    TinyGrouped,
    TinyLatentModel,
    TinyLfm2,
    TinyMistral,
    TinyModel,
    TinyQwen3Moe,
    shared_settings,
)

SMALL_CHUNKS = ("--max-num-batched-tokens", "96")


@dataclass(frozen=True)
class TinyPhi3(TinyGrouped):
    """A Phi-3 with long rope: beyond 1,024 tokens of ``--max-model-len`` all positions have other factors."""

    family: ClassVar[str] = "phi3"

    def config(self) -> Any:
        from transformers import Phi3Config

        rope = {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 32,
            "long_factor": [1.0 + 3.0 * place / 32 for place in range(32)],
            "original_max_position_embeddings": 1024,
            "partial_rotary_factor": 1.0,
        }
        return Phi3Config(
            intermediate_size=2 * self.hidden_size,
            num_key_value_heads=self.kv_head_count,
            original_max_position_embeddings=1024,
            rope_parameters=rope,
            **shared_settings(self),  # type: ignore[arg-type]
        )


@dataclass(frozen=True)
class Prefiller:
    """How a prefiller differs from the decoder of its case."""

    name: str
    right: bool
    arguments: tuple[str, ...] = ()
    model: Any = None
    """Another model of equal shape; None: the decoder's."""
    tp_size: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)


RIGHT = Prefiller("right", True, SMALL_CHUNKS)


@dataclass(frozen=True)
class Case:
    name: str
    model: Any
    """A shape of ``make_model``, or of this file."""
    prefillers: tuple[Prefiller, ...]
    arguments: tuple[str, ...] = ()
    dtype: str = "float32"
    tp_size: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    warns: bool = False
    """The default is ``warn``: equal engines differ."""
    recomputes: bool = False
    """``kv_load_failure_policy``: what is refused is computed by the decoder, not failed."""
    state: bool = False
    """Whether the model keeps a state, so that prefix caching has to be off."""
    choices: int = 1
    """How many answers both legs of a request ask for."""
    times: int = 1
    """How often each prompt is sent: what is sent again finds all its pages but the last one in both caches."""


def overrides(**fields: Any) -> tuple[str, ...]:
    return ("--hf-overrides", json.dumps(fields))


OTHER_BASE = overrides(rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
OTHER_STATES = overrides(ssm_out_multiplier=1.5)
FP8 = ("--kv-cache-dtype", "fp8")
NGRAM = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}))


def wrong(name: str, *arguments: str, **more: Any) -> Prefiller:
    return Prefiller(name, False, arguments, **more)


def of_rope(dtype: str) -> Case:
    short = ("--max-model-len", "1024")
    right = Prefiller("right", True, (*short, *SMALL_CHUNKS))
    return Case(f"rope-{dtype}", TinyPhi3(), (right, wrong("long-rope", "--max-model-len", "2048")), short, dtype)


def of_weights(dtype: str) -> Case:
    others = (wrong("other-weights", model=TinyModel(seed=21)), wrong("other-rope-base", *OTHER_BASE))
    return Case(f"weights-{dtype}", TinyModel(), (RIGHT, *others), dtype=dtype)


def of_experts(dtype: str) -> Case:
    fewer = wrong("fewer-experts", *overrides(num_experts_per_tok=1))
    return Case(f"experts-{dtype}", TinyQwen3Moe(), (RIGHT, fewer), dtype=dtype)


def of_scales(dtype: str) -> Case:
    other = Prefiller("other-scales", False, FP8, environment={"PROOF_KV_SCALE": "2.0"})
    right = Prefiller("right", True, (*FP8, *SMALL_CHUNKS))
    return Case(f"scales-{dtype}", TinyModel(), (right, other), FP8, dtype)


def of_ranks(name: str, prefiller: int, decoder: int, dtype: str) -> Case:
    right = Prefiller("right", True, SMALL_CHUNKS, tp_size=prefiller)
    return Case(f"{name}-{dtype}", TinyModel(), (right,), dtype=dtype, tp_size=decoder)


def of_recompute(dtype: str) -> Case:
    """As with asynchronous scheduling, which vLLM has on GPUs only."""
    of = (RIGHT, wrong("other-weights", model=TinyModel(seed=21)))
    return Case(
        f"recompute-{dtype}", TinyModel(), of, dtype=dtype, environment={"PROOF_CANNOT_STOP": "1"}, recomputes=True
    )


def of_chunks(dtype: str) -> Case:
    """A prefiller's passes are of 32, 512 or 2,048 tokens, its decoder's of 256."""
    sizes = ("32", "512", "2048")
    of = tuple(Prefiller(f"chunks-{size}", True, ("--max-num-batched-tokens", size)) for size in sizes)
    return Case(f"chunks-{dtype}", TinyModel(), of, dtype=dtype)


def of_windows(dtype: str) -> Case:
    return Case(f"windows-{dtype}", TinyGemma(), (RIGHT, wrong("other-weights", model=TinyGemma(seed=21))), dtype=dtype)


def of_states(name: str, model: Any, other: Any, dtype: str, *more: Prefiller) -> Case:
    return Case(f"{name}-{dtype}", model, (RIGHT, wrong("other-weights", model=other), *more), dtype=dtype, state=True)


CASES = (
    *(of_rope(dtype) for dtype in ("float32", "bfloat16")),
    *(of_weights(dtype) for dtype in ("float32", "bfloat16", "float16")),
    *(of_experts(dtype) for dtype in ("float32", "bfloat16")),
    *(of_scales(dtype) for dtype in ("bfloat16",)),
    *(of_ranks("two-to-one", 2, 1, dtype) for dtype in ("float32", "bfloat16")),
    *(of_ranks("one-to-two", 1, 2, dtype) for dtype in ("float32", "bfloat16")),
    *(of_chunks(dtype) for dtype in ("float32", "bfloat16")),
    *(Case(f"choices-{dtype}", TinyModel(), (RIGHT,), dtype=dtype, choices=3) for dtype in ("float32", "bfloat16")),
    *(Case(f"hits-{dtype}", TinyModel(), (RIGHT,), dtype=dtype, times=2) for dtype in ("float32", "bfloat16")),
    of_recompute("float32"),
    of_windows("float32"),
    of_windows("bfloat16"),
    of_states("states", TinyFalconH1(), TinyFalconH1(seed=21), "float32", wrong("other-scale", *OTHER_STATES)),
    of_states("states", TinyFalconH1(), TinyFalconH1(seed=21), "bfloat16"),
    Case("convolutions-float32", TinyLfm2(), (RIGHT,), warns=True, state=True),
    Case("window-bfloat16", TinyMistral(), (RIGHT,), dtype="bfloat16"),
    Case("sinks-bfloat16", TinyGptOss(), (RIGHT,), dtype="bfloat16"),
    Case("drafts-bfloat16", TinyModel(), (RIGHT,), NGRAM, dtype="bfloat16"),
    Case("latent-bfloat16", TinyLatentModel(), (RIGHT,), dtype="bfloat16", warns=True),
)
