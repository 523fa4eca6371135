"""A plug-in of SGLang for a server on the CPU whose KV comes from a CUDA that computes nothing: rows in place of what
the CPU computes of keys and values, and the tokens that the other side makes up.

Everything else is as users have it, and no stand-in is loaded.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from uncomputed.rows import Rows
from uncomputed.sglang_engine import POOLS, Rank, sampled


class RowsOnHost(Rows):
    """Of a library without streams."""

    @staticmethod
    def stream() -> ctypes.c_void_p:
        return ctypes.c_void_p()


class RankOnCpu(Rank):
    def of_devices(self) -> dict[str, Any]:
        return {"contexts": [], "rdma": [0, 0, 0], "used_bytes": 0}


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    rank = RankOnCpu(RowsOnHost(ctypes.CDLL(os.environ["UNCOMPUTED_ROWS"])))
    scheduler = "sglang.srt.managers.scheduler.Scheduler.process_batch_result"
    worker = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
    HookRegistry.register(worker, rank.begin_step, HookType.BEFORE)
    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.sample", sampled, HookType.AFTER)
    HookRegistry.register(scheduler, rank.write_figures, HookType.AFTER)
    HookRegistry.register(f"{POOLS}.MHATokenToKVPool.set_kv_buffer", rank.heads, HookType.REPLACE)
