"""How many KV heads a layer has over all tensor-parallel ranks, where layers differ. Pure.

A rank's tensor says how many heads the rank has. Where that is one, a head may be on several ranks: then the layer has
fewer heads than there are ranks, and only the model's configuration says how many. vLLM knows it of each layer where
transformers does (Gemma 4). Other models with other numbers in other layers (MiMo-V2, Step-3.5, a draft beside its
model) name them in fields of their own, and only their code knows which is whose. So the numbers are collected, and a
layer's is the one that fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError

_NAMES = ("kv_heads", "key_value_heads", "num_attention_groups")
"""What is in the names of fields that hold a number of KV heads, in the models that vLLM 0.33 reads."""
_VLLM_NAME = "total_num_kv_heads"


@dataclass(frozen=True, slots=True)
class HeadCounts:
    """The numbers of KV heads over all ranks that layers may have."""

    named: frozenset[int]
    """Those that the configurations of the model and of its draft name, for whichever layer."""
    by_layer: tuple[int, ...] = ()
    """Of each of the model's layers, where vLLM knows it."""

    @classmethod
    def read(cls, model: Any, draft: Any) -> HeadCounts:
        """Those of vLLM's ``ModelConfig`` of a model and of the draft beside it, which is None where there is none."""
        models = [model] if draft is None else [model, draft]
        said = {int(each.get_total_num_kv_heads()) for each in models}
        named = frozenset(said.union(*(_named(_fields(each.hf_text_config)) for each in models)))
        differing = getattr(getattr(model, "model_arch_config", None), "per_layer_overrides", None) or ()
        total = int(model.get_total_num_kv_heads())
        # Layers of a draft have numbers of their own, which may be those of the model's.
        return cls(named, tuple(int(each.get(_VLLM_NAME, total)) for each in differing) if draft is None else ())

    def of(self, name: str) -> frozenset[int]:
        """Those that this layer may have."""
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        known = len(numbers) == 1 and numbers[0] < len(self.by_layer)
        return frozenset({self.by_layer[numbers[0]]}) if known else self.named


def _fields(config: Any) -> Any:
    return config.to_dict() if hasattr(config, "to_dict") else vars(config)


def _named(fields: Any) -> Iterator[int]:
    """The numbers in fields of such names, at any depth: a list has one for each layer."""
    if not isinstance(fields, Mapping):
        return
    for name, value in fields.items():
        if any(part in str(name) for part in _NAMES):
            values = value if isinstance(value, list | tuple) else [value]
            yield from (each for each in values if isinstance(each, int) and each > 0)
        yield from _named(value)


def heads_of_layer(name: str, on_rank: int, counts: Collection[int], tp_size: int) -> int:
    """How many a layer with ``on_rank`` on one rank has over all; raises OptionError where that cannot be known."""
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
