"""Layers that vLLM packs on a CPU when an engine starts, and does not bring back when it loads weights again.

A layer with latent attention releases a weight, and a load fails half-way. With fused experts a load ends, and what the
engine then serves is not the new model: docs/results/2026-11-28-weights-trl.md. Imports no vLLM.
"""

from __future__ import annotations

from typing import Any

_EXPERTS = "FusedMoEMethodBase"
"""vLLM's base class of how experts are computed."""


def not_loadable_again(model: Any) -> str:
    """Why weights cannot be loaded into a model that is computed on a CPU, in one sentence; "" = they can."""
    for layer in model.modules():
        kinds = [kind.__name__ for kind in type(getattr(layer, "quant_method", None)).__mro__]
        if getattr(layer, "is_amx_bmm_enabled", False):
            return _sentence("latent attention")
        if _EXPERTS in kinds:
            return _sentence("fused experts")
    return ""


def _sentence(what: str) -> str:
    return (
        f"this server computes {what} on a CPU, and vLLM does not bring such layers back when it loads weights again:"
        " start it with the new checkpoint, or send to a server on a GPU"
    )
