"""What the connector needs to know about its engine, read once from vLLM's configuration objects."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kv_connector.configuration.engine_keys import is_key
from kv_connector.configuration.option_values import shown
from kv_connector.configuration.options import SGLANG_OPTIONS_VARIABLE, VLLM_OPTIONS_PLACE, Options, Role, parse_options
from kv_connector.exceptions import OptionError
from kv_connector.memory.handover import why_memory_cannot_be_shared
from kv_connector.memory.peer_access import lack_of_peer_access
from kv_connector.naming.weights_digest import digest_of_weights
from kv_connector.vllm.drafts import draft_with_kv, refuse_unserved_layers, refuse_unserved_method
from kv_connector.vllm.kv_groups import KvGroup, read_groups
from kv_connector.vllm.rank_groups import RankGroups
from kv_connector.vllm.transfer_params import Side

logger = logging.getLogger("vllm.kv_messenger")

OWN_KEY_VARIABLE = "VLLM_API_KEY"
"""By which vLLM's own server has its key unless ``--api-key`` names it, which its engine does not see."""

_ROLES: Mapping[str, Role] = {"kv_producer": "prefiller", "kv_consumer": "decoder", "kv_both": "both"}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's configuration as the connector uses it; equal in the scheduler's and in all workers' processes."""

    options: Options
    groups: RankGroups
    is_one_of_several: bool
    """Whether parts of one HTTP request may go to other data-parallel ranks: choices of ``n``, prompts of a list."""
    first_messenger_index: int
    """The number of messengers of all lower data-parallel ranks, whose engines may share this host."""
    not_shared_because: str
    """Why ranks that could share a messenger do not; "" if they do, or if the options do not ask for it."""
    kv_groups: tuple[KvGroup, ...]
    layer_names: tuple[str, ...]
    """Layers of all groups in the order in which the model was built, as far as known; layers with state come last.

    vLLM calls the hooks of attention layers only, in that order; the end of the step releases the other layers.
    """


def read_options(vllm_config: Any) -> Options:
    """Parses the user's options; raises OptionError."""
    transfer = vllm_config.kv_transfer_config
    role = _ROLES.get(transfer.kv_role) if isinstance(transfer.kv_role, str) else None
    if role is None:
        raise OptionError(f"kv_role is {shown(transfer.kv_role)}, expected one of {', '.join(_ROLES)}")
    if os.environ.get(SGLANG_OPTIONS_VARIABLE):
        logger.warning(
            "%s is set, which SGLang reads: vLLM's options go into %s", SGLANG_OPTIONS_VARIABLE, VLLM_OPTIONS_PLACE
        )
    options = parse_options(
        transfer.kv_connector_extra_config or {},
        role=role,
        engine_id=transfer.engine_id,
        kv_port=transfer.kv_port,
    )
    own_key = os.environ.get(OWN_KEY_VARIABLE, "")
    if options.engine_api_key or not is_key(own_key):
        return options
    return dataclasses.replace(options, engine_api_key=own_key)


def refuse_device(device_type: str, gpu: str) -> None:
    """Raises OptionError if the device is not supported; ``gpu`` is the value of the option of that name."""
    if device_type == "cpu" or (device_type == "cuda" and gpu == "unproven"):
        return
    hint = ", or set gpu to 'unproven' to try what has run on one GPU only" if device_type == "cuda" else ""
    raise OptionError(
        f"this vLLM computes on device {device_type!r}, expected 'cpu', because KV Messenger was shown at length"
        " with KV in host memory only: install vLLM for CPU, or take KvMessengerConnector out of"
        f" --kv-transfer-config{hint}"
    )


def refuse_sleep(vllm_config: Any, *, reports_sleep: bool) -> None:
    """Raises OptionError if the engine may sleep without telling connectors so: KV memory would go under a messenger.

    Assumed of vLLM: `/sleep` unmaps whatever its cumem allocator has given out, also where sleep mode is not enabled,
    and sleep mode enables that allocator. On a CPU vLLM keeps all its memory.
    """
    if reports_sleep or vllm_config.device_config.device_type == "cpu":
        return
    for name in ("enable_sleep_mode", "enable_cumem_allocator"):
        if getattr(vllm_config.model_config, name, False):
            raise OptionError(
                f"{name} is True, expected False, because this vLLM does not tell connectors when it gives KV memory"
                f" back: start without --{name.replace('_', '-')}, or take vLLM 0.33"
            )


def _refuse_micro_batches(parallel: Any) -> None:
    """vLLM splits a pass with either option (``ParallelConfig.use_ubatching``)."""
    chosen = {
        "enable_dbo": bool(getattr(parallel, "enable_dbo", False)),
        "ubatch_size": getattr(parallel, "ubatch_size", 0),
    }
    if chosen["enable_dbo"] or chosen["ubatch_size"] > 1:
        name, expected = ("enable_dbo", "False") if chosen["enable_dbo"] else ("ubatch_size", "at most 1")
        raise OptionError(
            f"{name} is {chosen[name]}, expected {expected}: with micro-batches in a forward pass a layer's hook fires"
            f" before all of its KV is written; start without --{name.replace('_', '-')}"
        )


def keeps_experts(vllm_config: Any) -> bool:
    """Whether vLLM keeps the experts of each cached token beside its KV, which no transfer brings.

    Assumed of vLLM: a worker that lacks them for a token that an answer is to list raises, which ends the engine. It
    refuses NIXL, Mooncake and MoRI-IO at the start for that, by their names.
    """
    return bool(getattr(getattr(vllm_config, "aux_output_config", None), "enabled", False))


def refuse_kept_experts(vllm_config: Any, role: Role) -> None:
    """Raises OptionError if all KV of this engine would come without the experts that vLLM keeps beside it."""
    if role == "decoder" and keeps_experts(vllm_config):
        raise OptionError(
            "enable_return_routed_experts is True on a decoder, expected False: no transfer brings the experts of the"
            " prompt's tokens, and vLLM ends where it lacks them; start without --enable-return-routed-experts"
        )


def read_facts(vllm_config: Any, kv_cache_config: Any) -> EngineFacts:
    """Reads and checks the configuration; raises OptionError if it cannot work.

    Each process of an engine calls it, so that the device is checked on every path, and not only where vLLM asks for a
    layout or for graphs.
    """
    options = read_options(vllm_config)
    refuse_device(vllm_config.device_config.device_type, options.gpu)
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise OptionError(f"{name} is {getattr(parallel, name)}, expected 1: KV Messenger moves whole pages only")
    _refuse_micro_batches(parallel)
    refuse_unserved_method(getattr(vllm_config, "speculative_config", None))
    refuse_kept_experts(vllm_config, options.role)
    kv_groups = read_groups(kv_cache_config)
    refuse_unserved_layers(vllm_config, kv_groups)
    names = [name for group in kv_groups for name in group.layer_names]
    built = list(getattr(vllm_config.compilation_config, "static_forward_context", {}))
    place = {name: index for index, name in enumerate(built)}
    states = {name for group in kv_groups if group.state for name in group.layer_names}
    ordered = sorted(names, key=lambda name: (name in states, place.get(name, len(place))))
    sharing, not_shared_because = _ranks_that_share(vllm_config, options)
    groups = RankGroups(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, sharing)
    return EngineFacts(
        options=options,
        groups=groups,
        first_messenger_index=getattr(parallel, "data_parallel_index", 0) * groups.messenger_count,
        is_one_of_several=_is_one_of_several(vllm_config),
        not_shared_because=not_shared_because,
        kv_groups=kv_groups,
        layer_names=tuple(ordered),
    )


def side_of(vllm_config: Any, facts: EngineFacts, *, ids_have_suffix: bool) -> Side:
    """The properties of this engine that requests must fit."""
    return Side(
        role=facts.options.role,
        tp_size=facts.groups.tp_size,
        pp_size=facts.groups.pp_size,
        messenger_count=facts.groups.messenger_count,
        ids_have_suffix=ids_have_suffix,
        is_one_of_several=facts.is_one_of_several,
        has_draft_kv=draft_with_kv(vllm_config) is not None,
        gets_encoded_media=bool(getattr(getattr(vllm_config, "ec_transfer_config", None), "is_ec_consumer", False)),
        recomputes=getattr(vllm_config.kv_transfer_config, "kv_load_failure_policy", "fail") == "recompute",
        keeps_experts=keeps_experts(vllm_config),
    )


def _is_one_of_several(vllm_config: Any) -> bool:
    """Whether an API server may give parts of one HTTP request to other data-parallel ranks.

    Assumed of vLLM: engines of a dense model no longer know of the others, except by the engine_id that each was given.
    """
    parallel = vllm_config.parallel_config
    if getattr(parallel, "data_parallel_external_lb", False):
        return False
    own_end = f"_dp{getattr(parallel, 'data_parallel_index', 0)}"
    named = str(vllm_config.kv_transfer_config.engine_id).endswith(own_end)
    return named or int(getattr(parallel, "data_parallel_size", 1)) > 1


def _ranks_that_share(vllm_config: Any, options: Options) -> tuple[int, str]:
    """(how many tensor-parallel ranks share a messenger, why not more).

    The scheduler's process decides how many reports end a request, and each worker whether it reports. So both must
    derive the same answer independently, before any memory is allocated.
    """
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size == 1 or options.messenger_per == "rank":
        return 1, ""
    if parallel.distributed_executor_backend not in ("mp", "uni"):
        return 1, f"with executor {parallel.distributed_executor_backend!r} ranks may be on any node"
    on_cpu = vllm_config.device_config.device_type == "cpu"
    if reason := why_memory_cannot_be_shared() if on_cpu else lack_of_peer_access():
        return 1, reason
    # Ranks are numbered stage by stage and fill one node after the other.
    return math.gcd(parallel.tensor_parallel_size, parallel.local_world_size), ""


def options_of_messenger(options: Options, messenger_index: int) -> Options:
    """The options of one of the engine's messengers: each gets the next of the fixed ports."""
    return options.of_rank(messenger_index)


def digest_of_model(vllm_config: Any, logger: logging.Logger, model: str) -> str:
    """The digest of the files from which this engine loads a model's weights; "" if it cannot be determined."""
    load = vllm_config.load_config
    return digest_of_weights(
        model,
        revision=vllm_config.model_config.revision,
        cache_folder=load.download_dir,
        load_format=str(load.load_format),
        logger=logger,
    )


def adapters_kept_max(vllm_config: Any) -> int:
    """The number of LoRA adapters that this engine keeps in memory; 0 without LoRA."""
    return int(getattr(getattr(vllm_config, "lora_config", None), "max_cpu_loras", None) or 0)
