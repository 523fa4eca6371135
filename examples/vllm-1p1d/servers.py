"""The servers of the vLLM demo and tests: engines on CPU, and the stock router."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server_process import LOOPBACK, MODEL_NAME, Server, core_binding, free_port

PAGE_TOKENS = 128
CHUNK_TOKENS = 256

ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": LOOPBACK,
    "VLLM_LOOPBACK_IP": LOOPBACK,
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class EngineOptions:
    """The options of one vLLM server, besides its name and folder."""

    model: Path
    kv_role: str | None = None  # None = a plain vLLM
    extra_config: Mapping[str, Any] = field(default_factory=dict)
    load_failure_policy: str | None = None  # None = vLLM's own default
    connector_module: str | None = None  # None = the wheel's plugin registers the connector
    beside: Mapping[str, Any] | None = None  # another connector, which shares a MultiConnector with ours
    asks_ours_first: bool = False  # ours is the first connector of MultiConnector
    transfer: Mapping[str, Any] | None = None  # the whole configuration, in place of the fields above
    core: int = 0
    tp_size: int = 1
    prefix_caching: bool = False
    page_tokens: int = PAGE_TOKENS
    dtype: str = "float32"
    sequences_max: int = 16
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


def engine(
    name: str, options: EngineOptions, folder: Path, port: int | None = None, kind: type[Server] = Server
) -> Server:
    chosen_port = port or free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(options.model), "--served-model-name", MODEL_NAME),
        *("--host", LOOPBACK, "--port", str(chosen_port)),
        *("--dtype", options.dtype, "--enforce-eager", "--max-model-len", "2048"),
        *("--max-num-batched-tokens", str(CHUNK_TOKENS), "--max-num-seqs", str(options.sequences_max)),
        *("--block-size", str(options.page_tokens), "--tensor-parallel-size", str(options.tp_size)),
        "--enable-prefix-caching" if options.prefix_caching else "--no-enable-prefix-caching",
        *options.arguments,
    ]
    if options.kv_role:
        command += ["--kv-transfer-config", json.dumps(transfer_config(options))]
    environment = {
        **ENGINE_ENVIRONMENT,
        **thread_placement(options.core, options.tp_size),
        **options.environment,
    }
    return kind(name, command, chosen_port, folder, environment)


def transfer_config(options: EngineOptions) -> dict[str, Any]:
    """The value of --kv-transfer-config. The policy for failed loads is MultiConnector's, common to its connectors."""
    if options.transfer is not None:
        return dict(options.transfer)
    ours: dict[str, Any] = {"kv_connector": "KvMessengerConnector", "kv_role": options.kv_role}
    if options.extra_config:
        ours["kv_connector_extra_config"] = dict(options.extra_config)
    if options.connector_module:
        ours["kv_connector_module_path"] = options.connector_module
    whole = ours
    if options.beside is not None:
        children = [ours, dict(options.beside)] if options.asks_ours_first else [dict(options.beside), ours]
        whole = {
            "kv_connector": "MultiConnector",
            "kv_role": options.kv_role,
            "kv_connector_extra_config": {"connectors": children},
        }
    if options.load_failure_policy:
        whole["kv_load_failure_policy"] = options.load_failure_policy
    return whole


def thread_placement(core: int, rank_count: int) -> dict[str, str]:
    """One OpenMP thread per rank. A single rank is pinned to a core; several ranks are not pinned.

    vLLM pins all threads of a rank, including those of gloo. On a busy core they would compete with other threads in
    every all-reduce, while the ranks and the engine that wait for them spin on another core.
    """
    if rank_count == 1:
        return {"VLLM_CPU_OMP_THREADS_BIND": core_binding(core)}
    return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def router(name: str, prefillers: Iterable[Server], decoders: Iterable[Server], folder: Path) -> Server:
    """The stock router in its default mode: it learns from answers that the prefiller pushes, then sends both legs."""
    port = free_port()
    command = ["vllm-router", "--vllm-pd-disaggregation", "--host", LOOPBACK, "--port", str(port)]
    for prefiller in prefillers:
        command += ["--prefill", prefiller.url]
    for decoder in decoders:
        command += ["--decode", decoder.url]
    command += ["--policy", "round_robin", "--prometheus-port", str(free_port()), "--disable-retries"]
    return Server(name, command, port, folder)
