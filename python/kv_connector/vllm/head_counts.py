"""How many KV heads a layer has over all tensor-parallel ranks, in models whose layers differ. Pure.

The shape of a rank's tensor gives the number of heads on that rank. If it is one, the head may be replicated: the layer
then has fewer heads than there are ranks, and only the model's configuration gives the number. vLLM knows the number
for each layer if transformers does (Gemma 4). Other models whose layers differ (MiMo-V2, Step-3.5, a model with a
draft) have it in configuration fields of their own, and only their code knows which field belongs to which layer. So
all numbers in such fields are collected, and a layer has the one that fits its tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError

_NAMES = ("kv_heads", "key_value_heads", "num_attention_groups")
"""Substrings of the names of fields that hold a number of KV heads, in the models that vLLM 0.33 supports."""
_VLLM_NAME = "total_num_kv_heads"


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """The possible numbers of KV heads of layers, over all ranks."""

    named: frozenset[int]
    """All numbers in the configurations of the model and of its draft, not assigned to layers."""
    by_layer: tuple[int, ...] = ()
    """The number of each of the model's layers, if vLLM knows it."""

    @classmethod
    def read(cls, model: Any, draft: Any) -> HeadCounts:
        """Reads vLLM's ``ModelConfig`` of a model and of its draft, which is None if there is none."""
        models = [model] if draft is None else [model, draft]
        counts = {int(each.get_total_num_kv_heads()) for each in models}
        named = frozenset(counts.union(*(_named(_fields(each.hf_text_config)) for each in models)))
        differing = getattr(getattr(model, "model_arch_config", None), "per_layer_overrides", None) or ()
        total = int(model.get_total_num_kv_heads())
        # A draft's layers have indices of their own, which may be those of the model's layers too.
        return cls(named, tuple(int(each.get(_VLLM_NAME, total)) for each in differing) if draft is None else ())

    def of(self, name: str) -> frozenset[int]:
        """The numbers that the layer of this name may have."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        known = len(numbers) == 1 and numbers[0] < len(self.by_layer)
        return frozenset({self.by_layer[numbers[0]]}) if known else self.named


def _fields(config: Any) -> Any:
    return config.to_dict() if hasattr(config, "to_dict") else vars(config)


def _named(fields: Any) -> Iterator[int]:
    """The numbers in fields with such names, at any depth; a list has one for each layer."""
    if not isinstance(fields, Mapping):
        return
    for name, value in fields.items():
        if any(part in str(name) for part in _NAMES):
            values = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in values if isinstance(each, int) and each > 0)
        yield from _named(value)


def heads_of_layer(name: str, on_rank: int, counts: Collection[int], tp_size: int) -> int:
    """The heads over all ranks of a layer with ``on_rank`` heads on one; raises OptionError if that is ambiguous."""
    fitting = sorted({count for count in counts if max(1, count // tp_size) == on_rank})
    if len(fitting) == 1:
        return fitting[0]
    named = " or ".join(str(count) for count in sorted(counts))
    if fitting:
        raise OptionError(
            f"layer {name!r} has 1 KV head on this rank and the model's configuration names {named}, expected one that"
            f" fits tensor_parallel_size {tp_size}: take a smaller tensor_parallel_size"
        )
    expected = " or ".join(str(count) for count in sorted({max(1, count // tp_size) for count in counts}))
    raise OptionError(
        f"layer {name!r} has {on_rank} KV heads on this rank, expected {expected} of {named} with tensor_parallel_size"
        f" {tp_size}"
    )
