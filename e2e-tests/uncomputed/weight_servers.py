"""vLLM's own servers on a CUDA that computes nothing, which take weights, and models of several kinds for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from make_model import Shape, TinyQwen3Moe, TinyWideLatentModel, cached_model
from prompts import cache_home
from server_process import Server, StartedProcess, free_port
from servers import EngineOptions, engine
from weights_bed import BACKEND, Served

from uncomputed.held_weights import digest_of
from uncomputed.pair import Engines

KV_BYTES = 32 << 20
ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}


@dataclass(frozen=True)
class Experts(TinyQwen3Moe):
    """A Qwen3 with experts of another number and size."""

    expert_count: int = 4
    expert_size: int = 256
    each_nth: int = 1
    """Layers between have no experts."""

    def config(self) -> Any:
        config = super().config()
        config.num_experts = self.expert_count
        config.moe_intermediate_size = self.expert_size
        config.decoder_sparse_step = self.each_nth
        return config


@dataclass(frozen=True)
class LatentExperts(TinyWideLatentModel):
    """A DeepSeek-V2 with experts in all layers but the first."""

    family: ClassVar[str] = "deepseek-wide-experts"
    expert_count: int = 4
    expert_size: int = 256
    shared_count: int = 1
    query_rank: int | None = None
    """That of queries, where they come of a latent vector too, as in the large DeepSeek-V2."""

    def config(self) -> Any:
        config = super().config()
        config.first_k_dense_replace = 1
        config.n_routed_experts = self.expert_count
        config.n_shared_experts = self.shared_count
        config.num_experts_per_tok = 2
        config.moe_intermediate_size = self.expert_size
        config.q_lora_rank = self.query_rank
        config.n_group = config.topk_group = 1
        return config


def checkpoint(shape: Shape, folder: Path) -> Path:
    """A model's folder below this one, of whose tensors none is that of another seed: new models' norms are all 1."""
    import torch
    from safetensors.torch import load_file, save_file

    made = folder / f"{shape.family}-{shape.seed}"
    shutil.copytree(cached_model(cache_home(), shape), made)
    draws = torch.Generator().manual_seed(shape.seed)
    for file in made.glob("*.safetensors"):
        tensors = {
            name: 1 + torch.rand(tensor.shape, generator=draws) if tensor.dim() == 1 else tensor
            for name, tensor in load_file(file).items()
        }
        save_file(tensors, file, {"format": "pt"})
    return made


def experts_in(folder: Path, rank: int, ranks: int, *, apart: bool) -> dict[str, str]:
    """By the checkpoint itself: digests of the experts that a rank holds, or of its part of each, in bfloat16."""
    import torch
    from safetensors.torch import load_file

    tensors = {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
    layers: dict[str, set[int]] = {}
    for name in tensors:
        layer, found, rest = name.partition(".experts.")
        if found:
            layers.setdefault(layer, set()).add(int(rest.partition(".")[0]))
    held: dict[str, str] = {}
    for layer, numbers in layers.items():
        count = len(numbers) // ranks if apart else len(numbers)
        for local in range(count):
            parts = [
                tensors[f"{layer}.experts.{local + apart * rank * count}.{part}_proj.weight"].bfloat16()
                for part in ("gate", "up", "down")
            ]
            if not apart:
                parts = [part.chunk(ranks, dim=dim)[rank] for part, dim in zip(parts, (0, 0, 1), strict=True)]
            name = f"{layer}.experts.routed_experts"
            held[f"{name}.w13_weight.{local}"] = digest_of(torch.cat(parts[:2]))
            held[f"{name}.w2_weight.{local}"] = digest_of(parts[2])
    return held


class UncomputedServer(Server):
    """`python -m vllm.entrypoints.openai.api_server`, forked from the process that pairs' engines are forked from."""

    engines: Engines

    def _launch(self, log: BinaryIO) -> StartedProcess:
        return self.engines.serve(self, log)


def server(name: str, model: Path, folder: Path, engines: Engines, ranks: int = 1, **changed: Any) -> Server:
    """Not started yet. Its ranks say what they hold (held_weights.py)."""
    settings = {"attention": "TRITON_ATTN", "arguments": (), "environment": {}, **changed}
    options = EngineOptions(
        model,
        dtype="bfloat16",
        page_tokens=16,
        tp_size=ranks,
        environment={**engines.environment(), **ENVIRONMENT, **settings["environment"]},
        arguments=(
            *("--worker-extension-cls", "uncomputed.held_weights.HeldWeights"),
            *("--kv-cache-memory-bytes", str(KV_BYTES), "--gpu-memory-utilization", "0.05"),
            *("--attention-config", json.dumps({"backend": settings["attention"]})),
            *("--compilation-config", json.dumps({"mode": 0, "custom_ops": ["none"]})),
            *settings["arguments"],
        ),
    )
    made = engine(name, options, folder, kind=UncomputedServer)
    assert isinstance(made, UncomputedServer)
    made.engines = engines
    return made


def serving(name: str, models: tuple[Path, Path], folder: Path, engines: Engines, **changed: Any) -> Served:
    """A server of the first model that takes the weights of the second one."""
    port = free_port()
    environment = {"KV_MESSENGER_WEIGHTS_METRICS_PORT": str(port), **changed.pop("environment", {})}
    arguments = (*BACKEND, *changed.pop("arguments", ()))
    made = server(name, models[0], folder, engines, arguments=arguments, environment=environment, **changed)
    return Served(made, port, *models)


def held_by(server: Server) -> list[dict[str, list[str]]]:
    """What each rank holds: by name the kind, the digest and the place of each tensor."""
    answer = server.post("/collective_rpc", {"method": "held_weights"})
    assert "results" in answer, answer
    return list(answer["results"])
