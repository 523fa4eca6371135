"""What the rotary embeddings of a built model rotate by, as settings that two sides compare. Pure but for the tensors.

The factors follow from more than the model's configuration: with long rope, vLLM takes others where requests may be
longer than the model was first trained on. So they are read from the modules that were built, not computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kv_connector.naming.model_settings import Settings

LONG_ROPE = "built.max_model_len.rope_factors"
"""Which factors long rope takes: "long" or "short"; follows from the longest request that an engine serves."""
_LONG_ROPE_SWITCH = "use_long_rope"
_SAMPLED_POSITIONS = (1, 63)
"""Shorter than any table. Tables may have other lengths on the two sides, and hold the same where both have a row."""


def of_modules(modules: Iterable[Any]) -> Settings:
    """The class, the sizes and samples of the tables of each distinct rotary embedding, by class and sizes."""
    samples: dict[str, set[str]] = {}
    switches: set[str] = set()
    for module in modules:
        long_rope = getattr(module, _LONG_ROPE_SWITCH, None)
        if long_rope is not None:
            switches.add("long" if long_rope else "short")
        sizes = f"{getattr(module, 'head_size', '?')}.{getattr(module, 'rotary_dim', '?')}"
        for name, table in _tables(module):
            first = int(module.original_max_position_embeddings) if long_rope else 0
            key = f"built.rope.{type(module).__qualname__}.{sizes}.{name}"
            samples.setdefault(key, set()).add(_sample(table, first))
    settings = {key: " or ".join(sorted(values)) for key, values in samples.items()}
    return {**({LONG_ROPE: " and ".join(sorted(switches))} if switches else {}), **dict(sorted(settings.items()))}


def of_configuration(config: Any, max_model_len: int) -> Settings:
    """Which factors long rope takes, by vLLM's rule, where the built modules cannot be reached."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(parameters, Mapping) or "longrope" not in (parameters.get("rope_type"), parameters.get("type")):
        return {}
    trained = parameters.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return {} if trained is None else {LONG_ROPE: "long" if max_model_len > int(trained) else "short"}


def _tables(module: Any) -> list[tuple[str, Any]]:
    buffers = getattr(module, "_buffers", {})
    return [(name, table) for name, table in buffers.items() if "cos_sin" in name and getattr(table, "ndim", 0) == 2]


def _sample(table: Any, first: int) -> str:
    """Two sums for each sampled row, rounded so that another processor's last bits do not show.

    An engine keeps the same table in float32 for some kernels, and in the model's type for others: cut to bfloat16,
    both are the same.
    """
    rows = [table[min(first + at, len(table) - 1)].bfloat16().float().cpu() for at in _SAMPLED_POSITIONS]
    sums = [f"{float(row.sum()):.1f} {_tilted(row):.1f}" for row in rows]
    return f"{table.shape[1]} wide: {', '.join(sums)}"


def _tilted(row: Any) -> float:
    return sum(float(value) * (index + 1) for index, value in enumerate(row)) / len(row)
