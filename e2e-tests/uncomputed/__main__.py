"""A vLLM in a process of its own, on a CUDA that computes nothing.

    python -m uncomputed PLAN

Commands and answers are those of gpu_check.vllm_on_torch, and so is the engine but for what is not there: vLLM's
compiled operators, Triton's kernels, and the tokens. Attention's part in KV is done by rows.c.
"""

from __future__ import annotations

import ctypes
import os
import sys
import types
from typing import Any

from uncomputed.rows import TOKEN, Rows

ROWS = "KV_MESSENGER_UNCOMPUTED_ROWS"
"""Where librows.so is."""
COMPILED = ("_C_stable_libtorch", "_moe_C_stable_libtorch", "_moe_C", "_vllm_fa2_C")


def main() -> None:
    rows = Rows(ctypes.CDLL(os.environ[ROWS]))
    stand_in_for_extensions()
    stand_in_for_kernels()
    stand_in_for_attention(rows)
    stand_in_for_tokens(rows)
    from gpu_check.vllm_on_torch import __main__ as served

    engine: Any = served.Engine
    figures = engine.figures
    engine.figures = lambda self: figures(self) | rows.figures()
    served.main()


def stand_in_for_extensions() -> None:
    """And for the platform: vLLM takes this one for a CUDA machine without NVML."""
    from gpu_check.vllm_on_torch import operators

    for name in COMPILED:
        sys.modules[f"vllm.{name}"] = types.ModuleType(name)
    sys.modules["vllm.vllm_flash_attn._vllm_fa2_C"] = types.ModuleType("_vllm_fa2_C")
    sys.modules["vllm._C_stable_libtorch"].registered = operators.register()  # type: ignore[attr-defined]
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform

    vllm.platforms.vllm_version_matches_substr = lambda substr: False
    vllm.platforms._current_platform = NonNvmlCudaPlatform()


def stand_in_for_kernels() -> None:
    from triton.runtime.jit import JITFunction

    JITFunction.run = lambda function, *given, **named: None


def stand_in_for_attention(rows: Rows) -> None:
    import vllm.v1.attention.backends.triton_attn as backend

    def update(key: Any, value: Any, keys: Any, values: Any, *given: Any) -> None:
        rows.layer(keys, values)

    backend.triton_reshape_and_cache_flash = update


def stand_in_for_tokens(rows: Rows) -> None:
    """Steps pass through `rows`, and their outputs get the tokens."""
    import numpy as np
    from vllm.v1.worker.gpu.async_utils import AsyncOutput
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    execute, begin, get_output = GPUModelRunner.execute_model, AsyncOutput.__init__, AsyncOutput.get_output

    def executed(runner: Any, scheduled: Any, *given: Any, **named: Any) -> Any:
        rows.begin_step(scheduled)
        return execute(runner, scheduled, *given, **named)

    def begun(waiting: Any, *given: Any, **named: Any) -> None:
        begin(waiting, *given, **named)
        waiting.sampled = rows.sampled

    def output(waiting: Any) -> Any:
        waiting.copy_event.synchronize()
        names = waiting.model_runner_output.req_ids
        waiting.num_sampled_tokens_np = np.array([waiting.sampled.get(name, 1) for name in names])
        waiting.sampled_token_ids = np.full_like(waiting.sampled_token_ids, TOKEN)
        return get_output(waiting)

    GPUModelRunner.execute_model = executed
    AsyncOutput.__init__ = begun
    AsyncOutput.get_output = output


if __name__ == "__main__":
    main()
