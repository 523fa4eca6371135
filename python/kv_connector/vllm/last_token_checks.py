"""What ``last_token_check`` means in an engine, and whether vLLM can end a request that it finds wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kv_connector.naming.pair_rules import Check
from kv_connector.vllm.engine_facts import EngineFacts
from kv_connector.vllm.kv_groups import KvGroup


def check_of(asked: str, *, latent: bool, device_type: str, convolutions: bool = False) -> Check:
    """What ``last_token_check`` means here: the option, or the strictest that gave no false alarm on right pairs.

    Latent KV on a CPU: equal engines differ in layer 0 themselves, because vLLM's kernels for norms and positions read
    several rows of a slice from the wrong places, and one row from the right one. Short convolutions (LFM2) on a CPU:
    the K that vLLM computes depends on how a prompt is cut into passes, by as much as K itself.
    """
    if asked in ("off", "warn", "fail"):
        return asked  # type: ignore[return-value]
    return "warn" if (latent or convolutions) and device_type == "cpu" else "fail"


def check_of_engine(vllm_config: Any, facts: EngineFacts) -> Check:
    """``check_of`` for an engine; equal in all of its processes."""
    latent = any(group.latent for group in facts.kv_groups if not group.state)
    convolutions = any(group.state_format.startswith("SHORT_CONV") for group in facts.kv_groups)
    device_type = str(vllm_config.device_config.device_type)
    return check_of(facts.options.last_token_check, latent=latent, device_type=device_type, convolutions=convolutions)


def can_stop(vllm_config: Any, groups: Sequence[KvGroup], load_failure_policy: str) -> bool:
    """Whether vLLM can end or repeat a running request whose loaded KV is wrong, without a wrong token.

    Assumed of vLLM: it raises, and ends, when blocks are reported as wrong while it has several KV cache groups; and
    with asynchronous scheduling it drops the token of a request that it repeats.
    """
    asynchronous = bool(getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", False))
    return len(groups) == 1 and not (asynchronous and load_failure_policy == "recompute")
