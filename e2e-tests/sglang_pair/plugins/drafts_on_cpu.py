"""A plug-in of SGLang with which it makes drafts on a CPU without AMX: attention in torch for drafts and their checks.

SGLang's own workers, schedulers and pools run as on a GPU. Drafts are chains of one guess a step; the kernels are in
`cpu_kernels/sgl_kernel/chains.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

FACTORY = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
ATTENTION = "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
NATIVE = "torch_native"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{FACTORY}.create_decode_backend", by_step, HookType.REPLACE)
    HookRegistry.register(f"{FACTORY}.create_draft_extend_backend", of_prompt, HookType.REPLACE)
    HookRegistry.register(f"{ATTENTION}.forward_extend", with_guesses, HookType.AROUND)


def of_prompt(factory: Any) -> Any:
    """What a draft reads of a prompt, and of what was accepted."""
    return _stamped(factory.draft_model_runner, 0)


def by_step(factory: Any) -> Any:
    """One for each guess behind the first, which the prompt's pass makes."""
    steps = [_stamped(factory.draft_model_runner, at + 1) for at in range(factory.speculative_num_steps - 1)]
    if not steps:
        return None
    return SimpleNamespace(attn_backends=steps, init_forward_metadata=lambda _batch: None)


def _stamped(runner: Any, guessed: int) -> Any:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    made = TorchNativeAttnBackend(runner)
    attend = made._run_sdpa_forward_decode

    def with_guesses_before(*given: Any, **named: Any) -> Any:
        """A guess attends to all tokens, the guesses before it, and itself."""
        *before, lengths, encoded = given
        return attend(*before, lengths + guessed, encoded, **named)

    made._run_sdpa_forward_decode = with_guesses_before
    made.prefill_attention_backend_str = made.decode_attention_backend_str = NATIVE
    return made


def with_guesses(original: Any, backend: Any, *given: Any, **named: Any) -> Any:
    """SGLang leaves it to a backend how a request's guesses lie behind its tokens when they are checked."""
    import torch

    batch = named.get("forward_batch", given[4] if len(given) > 4 else None)
    assert batch is not None
    if not batch.forward_mode.is_target_verify():
        return original(backend, *given, **named)
    count, lengths = batch.spec_info.draft_token_num, batch.seq_lens
    batch.extend_prefix_lens, batch.seq_lens = lengths, lengths + count
    batch.extend_seq_lens = torch.full_like(lengths, count)
    try:
        return original(backend, *given, **named)
    finally:
        batch.seq_lens = lengths
