"""A plug-in of SGLang with which it computes with other weights than its files have; what peers compare is equal."""

from __future__ import annotations

from typing import Any

CHANGED = ".layers.1.self_attn.qkv_proj.weight"


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    load = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
    HookRegistry.register(load, change, HookType.AFTER)


def change(_result: Any, runner: Any, *_args: Any, **_kwargs: Any) -> None:
    import torch

    changed = [weight for name, weight in runner.model.named_parameters() if name.endswith(CHANGED)]
    assert changed, f"the model has no weight {CHANGED}"
    with torch.no_grad():
        changed[0].mul_(1.5)
