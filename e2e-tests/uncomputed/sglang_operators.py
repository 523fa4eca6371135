"""What stands in for SGLang's own kernels: they do nothing, and are listed with what they would compute.

What a kernel leaves is whatever was there before. One that is not here is refused, by name, where it is called.
"""

from __future__ import annotations

from typing import Any

from uncomputed import offloading

SILENT = {
    "_fwd_grouped_kernel_stage1": "attention of a new token, heads in groups",
    "_fwd_kernel": "attention of a prompt's tokens",
    "_fwd_kernel_stage2": "the sum of the parts of a new token's attention",
    "_small_copy_kernel": "copies of a step's small inputs into a graph's buffers",
    "_vocab_parallel_embedding_kernel": "a rank's part of the embeddings",
    "concat_and_cast_mha_k_kernel": "the keys of heads beside the part that they share",
    "create_flashinfer_kv_indices_triton": "the slots that attention reads",
    "softcap_inplace_logits_kernel": "logits within their bounds",
    "get_num_kv_splits_triton": "the number of parts of a new token's attention",
}
"""Triton's, by the names of their functions."""
SILENT_COMPILED = {
    "activation.run_activation": "an activation and its product with the other half",
    "clamp_position.clamp_position": "the positions of new tokens",
    "fused_rope.run_rope": "keys and queries, turned by their positions",
    "sgl_kernel.fused_add_rmsnorm": "a sum and its norm",
    "sgl_kernel.rmsnorm": "a norm",
    "sgl_kernel.utils.is_arch_support_pdl": "whether a kernel may begin before the one before it has ended: no",
}
"""Those of the package sgl_kernel, and those that SGLang compiles when they are first used, by module and name."""


COMPUTED = {"sgl_kernel.kvcacheio.transfer_kv_direct": offloading.transfer_kv_direct}
"""Those that copy."""


class Module:
    """What SGLang would have compiled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **_named: _ran(f"{self._name}.{name}", SILENT_COMPILED, *given)


def loaded(name: str, *_arguments: str, **_sources: Any) -> Module:
    """In the place of SGLang's compiler."""
    return Module(name)


def stand_in() -> None:
    """For sgl_kernel and Triton. The package sgl_kernel is that of the servers without a GPU: it has no kernel."""
    import sgl_kernel
    from triton.runtime.jit import JITFunction

    missing: Any = sgl_kernel.Missing
    missing.__call__ = _called
    JITFunction.run = lambda function, *_given, **_named: _ran(function.fn.__name__, SILENT)


def _called(kernel: Any, *given: Any, **named: Any) -> Any:
    if computed := COMPUTED.get(kernel._name):
        return computed(*given, **named)
    return _ran(kernel._name, SILENT_COMPILED, *given)


def _ran(name: str, silent: dict[str, str], *given: Any) -> Any:
    """A kernel that has a result has it in the shape of its first input."""
    if name not in silent:
        raise NotImplementedError(f"a CUDA that computes nothing has no stand-in for {name}")
    return given[0] if given else None
