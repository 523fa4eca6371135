"""Mooncake Store on this machine: its master, a node that holds KV, and what engines need to keep KV there.

Its wheel is in an environment of its own. Engines have that folder on their path, and its libraries need libibverbs,
which lies with the libfabric that the build has unpacked. Control is on loopback; the node's data port is on every
address, because Mooncake's tcp transport knows no other.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fabric
from beneath import site_packages
from server_process import LOOPBACK, Server, free_port, start_all

CAPACITY_BYTES = 512 << 20
CLIENT_BYTES = 64 << 20
"""Of each engine's client, through which it copies."""
NOTICED_SECONDS = 2
"""How long an engine's client waits for a store that does not answer."""


def why_there_is_none() -> str | None:
    """None where the store can be started."""
    if site_packages("stores") is None:
        return "Mooncake's wheel cannot be installed, standard error says why"
    if fabric.folder() is None:
        return "Mooncake needs libibverbs, which comes with libfabric, and that cannot be had: standard error says why"
    return None


class Part(Server):
    """A process of Mooncake's. It speaks no HTTP: it is there when its port takes connections."""

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self.port)) == 0


@dataclass(frozen=True)
class Store:
    """A master and a node, and the configuration of their clients."""

    master: Part
    node: Part
    metrics_port: int
    config: Path

    def environment(self) -> dict[str, str]:
        """What an engine needs beside its own."""
        milliseconds = str(1000 * NOTICED_SECONDS)
        return {
            "PYTHONPATH": str(site_packages("stores")),
            "MOONCAKE_CONFIG_PATH": str(self.config),
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            "MC_RPC_TIMEOUT_MS": milliseconds,
            "MC_RPC_CONNECT_TIMEOUT_MS": milliseconds,
            "MC_TCP_PROGRESS_TIMEOUT_SEC": str(NOTICED_SECONDS),
            "MC_TCP_STATUS_TIMEOUT_SEC": str(NOTICED_SECONDS),
        }

    def stop(self) -> None:
        self.node.stop()
        self.master.stop()

    def key_count(self) -> float:
        """How many blocks of KV it keeps."""
        return Server("metrics", [], self.metrics_port, self.config.parent).metric("master_key_count")


CONNECTOR: Mapping[str, Any] = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}


def started(stack: ExitStack, name: str, folder: Path) -> Store:
    """A store that ends with `stack`."""
    rpc_port, metrics_port, node_port = free_port(), free_port(), free_port()
    programs = site_packages("stores")
    assert programs is not None, why_there_is_none()
    libraries = fabric.environment_of_fabric()
    master_address = f"{LOOPBACK}:{rpc_port}"
    master = [
        str(programs / "mooncake" / "mooncake_master"),
        *("--rpc_address", LOOPBACK, "--rpc_port", str(rpc_port), "--rpc_thread_num", "2"),
        *("--metrics_host", LOOPBACK, "--metrics_port", str(metrics_port)),
    ]
    node = [
        str(programs / "mooncake" / "mooncake_client"),
        *("--host", LOOPBACK, "--port", str(node_port), "--master_server_address", master_address),
        *("--metadata_server", "P2PHANDSHAKE", "--protocol", "tcp", "--threads", "1"),
        *("--global_segment_size", f"{CAPACITY_BYTES >> 20} MB"),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / f"{name}.json"
    config.write_text(json.dumps(client_config(master_address)), encoding="utf-8")
    made = Store(
        Part(f"{name}-master", master, rpc_port, folder, libraries),
        Part(f"{name}-node", node, node_port, folder, libraries),
        metrics_port,
        config,
    )
    stack.callback(made.stop)
    for part in (made.master, made.node):
        start_all([part], lambda line: print(line, flush=True))
    return made


def client_config(master_address: str) -> dict[str, Any]:
    """The file that MOONCAKE_CONFIG_PATH names."""
    return {
        "mode": "standalone-store",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master_address,
        "protocol": "tcp",
        "device_name": "",
        "global_segment_size": 0,
        "local_buffer_size": CLIENT_BYTES,
    }
