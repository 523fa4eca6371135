"""SGLang's servers on a CUDA that computes nothing, forked from a process that has imported SGLang."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from gpu_check.sglang_on_torch.plan import SglangPlan
from gpu_check.sglang_on_torch.servers import DIED, ENVIRONMENT, SglangServer
from server_process import Server
from sglang_servers import CPU_KERNELS, ENGINE_ENVIRONMENT
from warm_sglang import PRELOADED, WarmSglang
from warm_starts import WarmLauncher

from uncomputed import pair

PLUGINS = Path(__file__).resolve().parent / "plugins"
FIGURES = "UNCOMPUTED_FIGURES"
LIMIT_SECONDS = 600.0
SUMMED = ("rows_read", "rows_written", "rows_wrong", "replays", "offloaded_bytes", "loaded_bytes")
"""Of the figures of ranks."""


def environment() -> dict[str, str]:
    """Of each process. SGLang's operators run as on a GPU: those in torch, which gpu_check takes, are not asked for."""
    stand_ins = pair.stand_ins()
    given = {name: value for name, value in ENVIRONMENT.items() if name != "SGLANG_FORCE_FUSED_OP_BACKEND"}
    return {
        **given,
        **pair.environment(stand_ins),
        "PYTHONPATH": os.pathsep.join(map(str, (pair.FOLDER, PLUGINS, CPU_KERNELS))),
        "SGLANG_NCCL_SO_PATH": str(stand_ins / "libnccl.so.2"),
        "SGLANG_PLUGINS": "kv_messenger,uncomputed",
    }


LAUNCHER = WarmLauncher(("uncomputed.sglang_preloaded", *PRELOADED), environment)


class WarmUncomputed(WarmSglang):
    launcher = LAUNCHER


class UncomputedSglang(SglangServer):
    start_limit_seconds = rest_seconds = LIMIT_SECONDS

    def __init__(self, plan: SglangPlan, folder: Path, bootstrap_port: int = 0) -> None:
        self._figures = folder / f"{plan.name}-figures"
        self._figures.mkdir(parents=True)
        super().__init__(plan, folder, bootstrap_port)

    def environment(self) -> dict[str, str]:
        return {**environment(), FIGURES: str(self._figures)}

    def kind(self) -> type[Server]:
        return WarmUncomputed

    def end(self) -> None:
        """Nothing is to be seen of how it ends, and it takes its time."""
        found = [mark for mark in DIED if mark in self.server.log()]
        assert not found, f"{self.plan.name}'s log has {found}"

    def rest(self) -> dict[str, Any]:
        """The figures of ranks are sums, but for what they say of themselves."""
        rest = super().rest()
        self.server.get("/server_info")  # a scheduler answers behind the batch whose figures it writes
        ranks = self._of_ranks()
        summed = {name: sum(rank[name] for rank in ranks) for name in SUMMED}
        first_wrong = next((rank["first_wrong"] for rank in ranks if rank["first_wrong"]), "")
        contexts = sorted(rank["contexts"] for rank in ranks)
        rdma = [rank["rdma"] for rank in ranks]
        rest["figures"] |= summed | {"first_wrong": first_wrong, "contexts": contexts, "rdma": rdma}
        return rest

    def used_bytes(self) -> int:
        """Of devices' memory, as each rank knew when it wrote its figures last."""
        return sum(rank["used_bytes"] for rank in self._of_ranks())

    def _of_ranks(self) -> list[dict[str, Any]]:
        return [json.loads(file.read_text("utf-8")) for file in self._figures.glob("*.json")]


class SglangOnCpu(UncomputedSglang):
    """SGLang as users start it on a CPU, but that rows are where it computes keys and values."""

    def environment(self) -> dict[str, str]:
        return {
            **ENGINE_ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(map(str, (pair.FOLDER, PLUGINS, CPU_KERNELS))),
            "SGLANG_PLUGINS": "kv_messenger,rows_on_cpu",
            "UNCOMPUTED_ROWS": str(pair.stand_ins() / "librows_on_host.so"),
            FIGURES: str(self._figures),
        }

    def kind(self) -> type[Server]:
        return WarmSglang


def by_device(plan: SglangPlan, folder: Path, bootstrap_port: int) -> UncomputedSglang:
    """A server on what its plan names."""
    return (SglangOnCpu if plan.device == "cpu" else UncomputedSglang)(plan, folder, bootstrap_port)
