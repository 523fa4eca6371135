"""A plug-in of SGLang for a CUDA that computes nothing: its steps, KV and tokens, and what its ranks say of themselves.

A scheduler writes its figures after each batch, and when its memory went or came, into a file of its own in the folder
that `UNCOMPUTED_FIGURES` names.
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import torch
from gpu_check.vllm_on_torch.__main__ import Replays

from uncomputed import cuda_platform, sglang_operators
from uncomputed.offloading import Copied
from uncomputed.rows import TOKEN, Place, Rows, Step
from uncomputed.whole_numbers import OnHost, on_host

FIGURES = "UNCOMPUTED_FIGURES"
POOLS = "sglang.srt.mem_cache.memory_pool"
ALLOCATION = "sglang.srt.mem_cache.allocation"
UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
COMMUNICATORS = "sglang.srt.distributed.device_communicators"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    rank = Rank(Rows(ctypes.CDLL(os.environ["UNCOMPUTED_ROWS"])))
    before = {"sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation": rank.begin_step}
    after = {
        "sglang.srt.mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.__init__": with_torch,
        "sglang.srt.model_executor.model_runner.ModelRunner.sample": sampled,
        "sglang.srt.managers.scheduler.Scheduler.process_batch_result": rank.write_figures,
        f"{UPDATER}.release_memory_occupation": rank.write_figures,
        f"{UPDATER}.resume_memory_occupation": rank.write_figures,
    }
    replaced = {
        "sglang.kernels.jit.utils.load_jit": sglang_operators.loaded,
        "sglang.srt.layers.dual_gemm.DualGemm._select_mode": no_dual_gemm,
        "sglang.srt.utils.common.support_triton": no_triton,
        f"{ALLOCATION}.get_last_loc": last_slots,
        f"{COMMUNICATORS}.triton_symm_mem_ag.create_state": no_symmetric_memory,
        f"{POOLS}.MHATokenToKVPool.set_kv_buffer": rank.heads,
        f"{POOLS}.MLATokenToKVPool.set_mla_kv_buffer": rank.latent,
        f"{POOLS}.MLATokenToKVPool.set_kv_buffer": rank.latent,
    }
    for hooks, kind in ((before, HookType.BEFORE), (after, HookType.AFTER), (replaced, HookType.REPLACE)):
        for target, hook in hooks.items():
            HookRegistry.register(target, hook, kind)
    sglang_operators.stand_in()
    OnHost().__enter__()


class Rank:
    """What this process knows if it is one."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._replays = Replays()

    def begin_step(self, _worker: Any, batch: Any = None, *_given: Any, **_named: Any) -> None:
        """A graph's warm-up has no batch, and no rows."""
        if batch is None:
            return
        steps = []
        for index, request in enumerate(batch.reqs):
            end = int(batch.seq_lens_cpu[index])
            begin = end - 1 if batch.forward_mode.is_decode() else end - int(batch.extend_lens[index])
            slots = on_host(batch.req_to_token_pool.req_to_token[int(request.kv.req_pool_idx)])[:end].tolist()
            prompt = list(request.origin_input_ids)[:end]
            steps.append(Step(begin, end, prompt + [TOKEN] * (end - len(prompt)), [slots]))
        self._rows.queue_step(steps)

    def heads(self, pool: Any, layer: Any, *_given: Any, **_named: Any) -> None:
        from sglang.srt.runtime_context import get_parallel

        pool.get_key_buffer(layer.layer_id)  # waits, as attention does, for what is loaded from host memory
        number = layer.layer_id - pool.start_layer
        keys, values = (by_page(buffers[number], pool.page_size) for buffers in (pool.k_buffer, pool.v_buffer))
        first_head = get_parallel().attn_tp_rank * pool.head_num
        self._rows.at_place(keys, values, Place(layer.layer_id, first_head=first_head))

    def latent(self, pool: Any, layer: Any, *_given: Any, **_named: Any) -> None:
        pool.get_key_buffer(layer.layer_id)
        cache = by_page(pool.kv_buffer[layer.layer_id - pool.start_layer], pool.page_size)
        self._rows.at_place(cache, None, Place(layer.layer_id))

    def of_devices(self) -> dict[str, Any]:
        return {
            "contexts": cuda_platform.contexts(),
            "rdma": cuda_platform.rdma(),
            "used_bytes": cuda_platform.used_bytes(),
        }

    def write_figures(self, *_given: Any, **_named: Any) -> None:
        figures = self._rows.figures() | self.of_devices()
        figures |= {
            "replays": self._replays.count,
            "offloaded_bytes": Copied.to_host_bytes,
            "loaded_bytes": Copied.to_device_bytes,
        }
        path = Path(os.environ[FIGURES]) / f"{os.getpid()}.json"
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(figures), "utf-8")
        beside.rename(path)


def by_page(buffer: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """(pages, tokens of a page, heads, head size)."""
    return buffer.view(-1, page_tokens, *buffer.shape[1:])


def sampled(tokens: torch.Tensor, *_given: Any, **_named: Any) -> torch.Tensor:
    return torch.full(tokens.shape, TOKEN, dtype=tokens.dtype).to(tokens.device)


def no_dual_gemm(*_given: Any) -> None:
    """It is Blackwell's, and this device is as an H100."""


def no_symmetric_memory(*_given: Any, **_named: Any) -> None:
    """As where no memory is multicast: logits are gathered by NCCL."""
    raise NotImplementedError("a CUDA that computes nothing has no symmetric memory")


def no_triton(_backend: str) -> bool:
    """SGLang has its tables of pages computed by kernels of Triton's, or else by torch, which the host can compute."""
    return False


def with_torch(_result: None, allocator: Any, *_given: Any, **_named: Any) -> None:
    allocator.use_triton_kernels = False


def last_slots(*given: Any) -> Any:
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(*given)
