"""What an engine is started with."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

VLLM, NO_VLLM = "vllm-site", "vllm-not-packed.txt"
"""Beside this package: the folder with vLLM, or the reason why there is none."""
ALONE, PREFILLER, DECODER, BOTH = "", "kv_producer", "kv_consumer", "kv_both"
"""Values of vLLM's kv_role."""
EAGER = "EAGER"
"""No graphs."""


@dataclass(frozen=True)
class VllmPlan:
    """`graphs`: vLLM's cudagraph_mode or EAGER; `compile`: torch.compile's backend; `runner`: V1 or V2, by number.

    `attention`: vLLM's name of the backend; `layout`: of KV, HND or by default; `ranks`: the tensor-parallel ones;
    `stages`: those of a pipeline; `sleeps`: whether it may; `context_tokens`: the longest prompt with its answer;
    `made_up_weights`: those of made_up_weights.py, not the model's; `margins`: with a connector answers have them too;
    `prefill_graphs`: whether a whole chunk has a graph; `block_tokens`: of KV, for a block; `beside`: another
    connector, which shares a MultiConnector with ours; `asks_ours_first`: ours is the first of the two.
    """

    name: str
    model: str
    role: str = ALONE
    graphs: str = "FULL"
    runner: int = 2
    dtype: str = "bfloat16"
    kv_dtype: str = "auto"
    chunk_tokens: int = 512
    kv_bytes: int = 256 << 20
    prefix_caching: bool = False
    compile: str = ""
    attention: str = "TRITON_ATTN"
    layout: str = ""
    ranks: int = 1
    stages: int = 1
    sleeps: bool = False
    context_tokens: int = 2048
    made_up_weights: bool = False
    margins: bool = False
    prefill_graphs: bool = True
    block_tokens: int = 16
    beside: dict[str, Any] = field(default_factory=dict)
    asks_ours_first: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))
