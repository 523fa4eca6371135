"""What a server is started with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SGLANG, NO_SGLANG = "sglang-site", "sglang-not-packed.txt"
"""Beside this package: the folder with SGLang, or the reason why there is none."""
ALONE, PREFILLER, DECODER = "", "prefill", "decode"
"""Values of --disaggregation-mode."""
PAGE_TOKENS = 16
CONTEXT_TOKENS = 2048
POOL_TOKENS = 16384
REQUESTS_MAX = 16
HOST_CACHE = {
    "hicache-ratio": 8,
    "hicache-io-backend": "direct",
    "hicache-mem-layout": "layer_first",
    "hicache-write-policy": "write_through",
}
"""Copies by CUDA's own calls, as soon as a prompt is computed; room for several times the pool."""
MEMORY_SHARE = "0.05"
"""Of the device's, for weights and pools; the number of tokens is given."""


@dataclass(frozen=True)
class SglangPlan:
    """`decode_graphs`, `prefill_graphs`: SGLang's kinds of CUDA graphs; `radix`: beginnings of prompts are kept.

    `overlap`: passes overlap with scheduling, which is SGLang's default.
    """

    name: str
    model: str
    role: str = ALONE
    dtype: str = "bfloat16"
    decode_graphs: str = "full"
    prefill_graphs: str = "disabled"
    overlap: bool = True
    pool_tokens: int = POOL_TOKENS
    host_cache: bool = False
    """What the radix cache evicts is kept in host memory: SGLang's hierarchical cache."""
    radix: bool = False
    chunk_tokens: int = 2048
    attention: str = "triton"
    device: str = "cuda"
    ranks: int = 1
    """Tensor-parallel ones."""
    gives_memory_back: bool = False
    """KV is in memory of torch_memory_saver's, which goes and comes back when SGLang is asked for that."""
    rdma_devices: str = ""
    """SGLang's --disaggregation-ib-device; "": not given."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What the model's config has for SGLang that its file does not have."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """KV Messenger's own."""

    def arguments(self, port: int, nccl_port: int, bootstrap_port: int) -> list[str]:
        """Those of `python -m sglang.launch_server`."""
        named: dict[str, object] = {
            "model-path": self.model,
            "host": "127.0.0.1",
            "port": port,
            "nccl-port": nccl_port,
            "device": self.device,
            "dtype": self.dtype,
            "attention-backend": self.attention,
            "sampling-backend": "pytorch",
            "grammar-backend": "none",
            "page-size": PAGE_TOKENS,
            "chunked-prefill-size": self.chunk_tokens,
            "context-length": CONTEXT_TOKENS,
            "max-total-tokens": self.pool_tokens,
            "max-running-requests": REQUESTS_MAX,
            "mem-fraction-static": MEMORY_SHARE,
            "cuda-graph-backend-decode": self.decode_graphs,
            "cuda-graph-backend-prefill": self.prefill_graphs,
            "cuda-graph-max-bs-decode": REQUESTS_MAX,
            "tp-size": self.ranks,
        }
        if self.overrides:
            named["json-model-override-args"] = json.dumps(dict(self.overrides))
        if self.role:
            named |= {"disaggregation-mode": self.role, "disaggregation-transfer-backend": "kv_messenger"}
        if self.role and self.rdma_devices:
            named |= {"disaggregation-ib-device": self.rdma_devices}
        if self.role == PREFILLER:
            named |= {"disaggregation-bootstrap-port": bootstrap_port}
        if self.role == DECODER and self.device == "cpu":
            named |= {"disaggregation-decode-retraction-backup": "cpu_tensor"}
        if self.host_cache:
            named |= HOST_CACHE
        switches = {
            "skip-tokenizer-init": True,
            "skip-server-warmup": True,
            "enable-cache-report": True,
            "disable-radix-cache": not self.radix,
            "disable-overlap-schedule": not self.overlap,
            "enable-hierarchical-cache": self.host_cache,
            "enable-memory-saver": self.gives_memory_back,
            "disaggregation-decode-enable-radix-cache": self.radix and self.role == DECODER,
        }
        given = [part for name, value in named.items() for part in (f"--{name}", str(value))]
        return given + [f"--{name}" for name, is_on in switches.items() if is_on]
