"""How an engine is set up, and the configuration objects in which the connector looks for it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer with grouped-query attention."""

    layers: int = 4
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    inner: int = 128
    vocabulary: int = 512
    seed: int = 7

    def layer_names(self) -> list[str]:
        return [f"model.layers.{index}.self_attn.attn" for index in range(self.layers)]


@dataclass(frozen=True)
class EnginePlan:
    """One side; travels to its process as JSON."""

    name: str
    kv_role: Literal["kv_producer", "kv_consumer", "none"]
    """"none": an engine alone, without a connector."""
    device: Literal["cpu", "cuda"] = "cpu"
    layout: Literal["HND", "NHD"] = "HND"
    block_tokens: int = 16
    blocks: int = 96
    requests_max: int = 8
    chunk_tokens: int = 48
    """How many tokens a pass computes at most."""
    tokens_max: int = 320
    """Of a request."""
    graphs: bool = False
    kv_in_host_memory: bool = False
    """On a GPU: the pages lie in page-locked memory of the host, where any transport reaches them."""
    stand_in: str = ""
    """A libcuda.so.1 in place of NVIDIA's: torch computes on the CPU, and the connector is told of a GPU."""
    counts_twice: bool = False
    """With the stand-in and graphs: a pass launches the graph that counts its layers once too often."""
    held: bool = False
    """Passes stand after each layer but the last until it has left, or a limit is over."""
    captures_between_steps: bool = False
    """On a GPU with graphs: a graph is captured after each step."""
    shape: ModelShape = field(default_factory=ModelShape)
    options: dict[str, Any] = field(default_factory=dict)
    """The connector's."""

    @property
    def reported_device(self) -> str:
        """What the connector takes the engine to compute on."""
        return "cuda" if self.stand_in else self.device

    def as_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EnginePlan:
        fields = json.loads(text)
        return cls(**{**fields, "shape": ModelShape(**fields["shape"])})


@dataclass(frozen=True)
class FullAttentionSpec:
    """Named as vLLM's: the connector reads the kind of a group from it."""

    block_size: int
    page_size_bytes: int = 1

    def max_memory_usage_bytes(self, config: Any) -> int:
        return -(-int(config.model_config.max_model_len) // self.block_size)


def vllm_config(plan: EnginePlan) -> SimpleNamespace:
    """As much of vLLM's configuration as the connector reads."""
    shape = plan.shape
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_role=plan.kv_role,
            engine_id=plan.name,
            kv_port=0,
            kv_connector_extra_config={"listen_port": 0, "metrics_port": -1, **plan.options},
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, local_world_size=1, distributed_executor_backend="uni"
        ),
        compilation_config=SimpleNamespace(
            static_forward_context={name: SimpleNamespace() for name in shape.layer_names()}
        ),
        device_config=SimpleNamespace(device_type=plan.reported_device),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        load_config=SimpleNamespace(load_format="dummy", download_dir=None),
        aux_output_config=SimpleNamespace(enabled=False),
        speculative_config=None,
        model_config=SimpleNamespace(
            model="torch-engine",
            revision=None,
            hf_text_config=SimpleNamespace(num_key_value_heads=shape.kv_heads, **dataclasses.asdict(shape)),
            get_total_num_kv_heads=lambda: shape.kv_heads,
            use_mla=False,
            max_model_len=plan.tokens_max,
        ),
    )


def kv_cache_config(plan: EnginePlan) -> SimpleNamespace:
    """One group of all layers."""
    spec = FullAttentionSpec(plan.block_tokens)
    group = SimpleNamespace(layer_names=plan.shape.layer_names(), kv_cache_spec=spec)
    return SimpleNamespace(kv_cache_groups=[group], transfer_group_ids=(0,), num_blocks=plan.blocks)
