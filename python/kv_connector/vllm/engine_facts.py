"""What the connector needs to know of the engine it runs in, read once from vLLM's configuration objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.exceptions import OptionError
from kv_connector.options import Options, Role, parse_options

_ROLES: Mapping[str, Role] = {"kv_producer": "prefiller", "kv_consumer": "decoder", "kv_both": "both"}
_SUPPORTED_SPECS = ("FullAttentionSpec", "MLAAttentionSpec")


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's side of the story; the same in the scheduler's process and in all workers'."""

    options: Options
    tp_size: int
    pp_size: int
    block_tokens: int
    layer_names: tuple[str, ...]
    """Layers that own KV, in the order in which the model was built, as far as known."""
    latent: bool

    @property
    def world_size(self) -> int:
        """How many workers the engine has."""
        return self.tp_size * self.pp_size


def read_options(vllm_config: Any) -> Options:
    """The user's options; raises OptionError."""
    transfer = vllm_config.kv_transfer_config
    role = _ROLES.get(transfer.kv_role)
    if role is None:
        raise OptionError(f"kv_role is {transfer.kv_role!r}, expected one of {', '.join(_ROLES)}")
    return parse_options(
        transfer.kv_connector_extra_config or {},
        role=role,
        engine_id=transfer.engine_id,
        kv_port=transfer.kv_port,
    )


def read_facts(vllm_config: Any, kv_cache_config: Any) -> EngineFacts:
    """Reads and checks; raises OptionError with a sentence on a set-up that cannot work."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise OptionError(f"{name} is {getattr(parallel, name)}, expected 1: KV Messenger moves whole pages only")
    names, block_tokens, latent = _read_caches(kv_cache_config)
    built = list(getattr(vllm_config.compilation_config, "static_forward_context", {}))
    place = {name: index for index, name in enumerate(built)}
    ordered = sorted(names, key=lambda name: place.get(name, len(place)))
    facts = EngineFacts(
        options=read_options(vllm_config),
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        block_tokens=block_tokens,
        layer_names=tuple(ordered),
        latent=latent,
    )
    if facts.world_size > 1 and facts.options.role != "decoder" and facts.options.listen_port == 0:
        raise OptionError(
            f"option 'listen_port' is 0 with {facts.world_size} ranks, expected the first of that many free ports: each"
            " rank listens, and decoders find rank n at listen_port + n"
        )
    return facts


def rank_options(options: Options, rank_index: int) -> Options:
    """The options of one rank."""
    return options.of_rank(rank_index)


def _read_caches(kv_cache_config: Any) -> tuple[list[str], int, bool]:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise OptionError(
            f"the model has {len(groups)} groups of KV caches, expected 1: KV Messenger serves models whose layers all"
            " have full attention (a draft model counts as a group: start without speculative decoding)"
        )
    group = groups[0]
    spec = group.kv_cache_spec
    specs = list(getattr(spec, "kv_cache_specs", {}).values()) or [spec]
    kinds = sorted({type(s).__name__ for s in specs})
    if len(kinds) != 1 or kinds[0] not in _SUPPORTED_SPECS:
        raise OptionError(
            f"the model's KV caches are {' and '.join(kinds)}, expected one of {', '.join(_SUPPORTED_SPECS)}"
        )
    if any(getattr(s, "tokens_per_state", 1) != 1 for s in specs):
        raise OptionError("the model's KV cache holds several tokens in one state, expected one token in each")
    return list(group.layer_names), int(spec.block_size), kinds[0] == "MLAAttentionSpec"
