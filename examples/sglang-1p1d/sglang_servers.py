"""The servers of the SGLang demo and tests: engines on CPU, and SGLang's own small load balancer."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from server_process import LOOPBACK, MODEL_NAME, Server, core_binding, free_port

PAGE_TOKENS = 16
CHUNK_TOKENS = 256
CONTEXT_TOKENS = 1024
POOL_TOKENS = 8192
REQUESTS_MAX = 16
CPU_KERNELS = Path(__file__).resolve().parent / "cpu_kernels"
Role = Literal["prefill", "decode"]

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "SGLANG_USE_CPU_ENGINE": "1",
    "SGLANG_HOST_IP": LOOPBACK,
    "SGLANG_NCCL_SO_PATH": "none",  # ranks use gloo; NCCL would be found but needs a GPU
    "OMP_NUM_THREADS": "1",
}
CPU_ARGUMENTS = (
    *("--device", "cpu", "--dtype", "float32", "--kv-cache-dtype", "auto"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"),
    "--disable-cuda-graph",
    "--sleep-on-idle",  # otherwise each idle scheduler occupies a whole core while others start
)


@dataclass(frozen=True)
class EngineOptions:
    """The options of one SGLang server, besides its name and folder."""

    model: Path
    role: Role | None = None  # None = a single SGLang
    backend: str = "kv_messenger"
    bootstrap_port: int = 0  # on a prefiller; decoders get it with each request
    core: int = 0
    tp_size: int = 1
    pp_size: int = 1
    tokenizer_workers: int = 1
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    page_tokens: int = PAGE_TOKENS
    overlap: bool = False
    """Whether a prefiller's passes overlap with its scheduling: SGLang's default, which needs ``torch.cuda.Event``."""
    switches: bool = False
    """Whether its role may change while it runs."""
    arguments: tuple[str, ...] = ()
    warm_up: bool = False
    """Whether the server sends itself a request before it reports that it is ready, which takes some seconds."""


def role_arguments(options: EngineOptions) -> tuple[str, ...]:
    if options.role is None:
        return ()
    shared = ("--disaggregation-mode", options.role, "--disaggregation-transfer-backend", options.backend)
    # With overlap, a hit in the radix cache records a torch.cuda.Event, which ends the scheduler without a GPU.
    alone = () if options.overlap else ("--disable-overlap-schedule",)
    prefills = ("--disaggregation-bootstrap-port", str(options.bootstrap_port), *alone)
    # The default keeps a backup in pinned memory, which torch has only with a GPU.
    decodes = ("--disaggregation-decode-retraction-backup", "cpu_tensor")
    if options.switches:
        return (*shared, *prefills, *decodes, "--enable-pd-role-switch")
    return (*shared, *(prefills if options.role == "prefill" else decodes))


def engine(
    name: str, options: EngineOptions, folder: Path, port: int | None = None, kind: type[Server] = Server
) -> Server:
    chosen_port = port or free_port()
    command = [
        *(options.python, "-m", "sglang.launch_server"),
        *("--model-path", str(options.model), "--served-model-name", MODEL_NAME),
        *("--host", LOOPBACK, "--port", str(chosen_port)),
        *CPU_ARGUMENTS,
        *(() if options.warm_up else ("--skip-server-warmup",)),
        *("--page-size", str(options.page_tokens), "--chunked-prefill-size", str(CHUNK_TOKENS)),
        *("--context-length", str(CONTEXT_TOKENS), "--max-total-tokens", str(POOL_TOKENS)),
        *("--max-running-requests", str(REQUESTS_MAX), "--enable-metrics", "--enable-cache-report"),
        *("--tp-size", str(options.tp_size), "--pp-size", str(options.pp_size)),
        *("--tokenizer-worker-num", str(options.tokenizer_workers)),
        *("--nccl-port", str(free_port())),  # SGLang would draw one long before a scheduler binds it
        *role_arguments(options),
        *options.arguments,
    ]
    inherited = options.environment.get("PYTHONPATH")
    environment = {
        **ENGINE_ENVIRONMENT,
        "SGLANG_CPU_OMP_THREADS_BIND": core_binding(options.core, options.tp_size * options.pp_size),
        **options.environment,
        "PYTHONPATH": os.pathsep.join([str(CPU_KERNELS), *([inherited] if inherited else [])]),
    }
    return kind(name, command, chosen_port, folder, environment)


def load_balancer(
    name: str, prefiller: Server, bootstrap_port: int, decoder: Server, kind: type[Server] = Server
) -> Server:
    """The small load balancer of the stock ``sglang-router``, which sends a request to both sides at once."""
    folder = prefiller.log_path.parent
    port = free_port()
    command = [
        *(sys.executable, "-m", "sglang_router.launch_router", "--mini-lb", "--pd-disaggregation"),
        *("--prefill", prefiller.url, str(bootstrap_port), "--decode", decoder.url),
        *("--host", LOOPBACK, "--port", str(port)),
    ]
    return kind(name, command, port, folder)
