"""What the backend needs to know about SGLang's configuration."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kv_connector.configuration.engine_keys import is_key
from kv_connector.configuration.option_values import shown
from kv_connector.configuration.option_variables import variable_of
from kv_connector.configuration.options import SGLANG_OPTIONS_VARIABLE, VLLM_OPTIONS_PLACE, Options, Role, parse_options
from kv_connector.exceptions import OptionError
from kv_connector.naming.model_fingerprint import fingerprint
from kv_connector.naming.pair_rules import Check
from kv_connector.naming.weights_digest import digest_of_weights
from kv_connector.sglang import kv_settings, own_host, own_rdma_devices, page_shares, pool_kinds, refusals

logger = logging.getLogger("sglang.srt.kv_messenger")

OPTIONS_VARIABLE = SGLANG_OPTIONS_VARIABLE
"""The environment variable with the options as JSON: SGLang has no argument for a backend's own options."""

_LEFT_TO_SGLANG: Mapping[str, tuple[str | None, str]] = {
    "messenger_per": ("rank", "each of SGLang's ranks has a messenger of its own"),
    "fetch_limit_seconds": (
        None,
        "SGLang says how long a decoder waits for its KV: set SGLANG_DISAGGREGATION_WAITING_TIMEOUT instead",
    ),
}
"""Options without effect here: the only accepted value, None if there is none, and why."""

_UNHEARD_VARIABLES: Mapping[str, str] = {
    "prefill": "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
    "decode": "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
}
"""SGLang's own variables for how long one leg of a request waits for the other, by the role of its engine."""

_UNKNOWN_RANK = SimpleNamespace(system_dp_rank=0, pp_rank=0, engine_rank=0)

_ROLES: Mapping[str, Role] = {"prefill": "prefiller", "decode": "decoder"}


@dataclass(frozen=True, slots=True)
class Draft:
    """The layers of a draft model, which have KV of their own."""

    latent: bool
    kv_head_count: int
    """Over all ranks; 1 if it is latent."""

    def text(self, algorithm: str) -> str:
        """The draft as peers compare it."""
        return f"{algorithm} with {'latent KV' if self.latent else f'{self.kv_head_count} KV heads'}"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """The engine's configuration as the backend uses it."""

    options: Options
    model: str
    weights_digest: str
    """The digest that peers compare; "" with a ``model_id``, by which the user vouches for equal weights."""
    loaded_digest: str
    settings: Mapping[str, str]
    """What else decides which KV the engine computes; peers compare it."""
    dtype: str
    element_bytes: int
    kv_head_count: int
    windowed_kv_head_count: int
    """The KV heads, over all ranks, of layers with a sliding window, which have a pool of their own."""
    full_layers: Sequence[int] = ()
    """Of a model with windows, the numbers of this pipeline stage's layers without one; () = not known."""
    windowed_layers: Sequence[int] = ()
    """The numbers of its layers with one."""
    page_shares: int = 1
    """Among how many ranks pages are divided; see ``page_shares.py``."""
    draft: Draft | None = None
    """None: the engine has no draft model."""


def read(server_args: Any, kv_args: Any, mode: str) -> EngineFacts:
    """Reads the options and the model's configuration; raises OptionError."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_parallel, get_spec

    parallel = get_parallel()
    stage = (kv_args.system_dp_rank or 0) * parallel.pp_size + kv_args.pp_rank
    options = read_options(mode, kv_args).of_rank(stage * parallel.tp_size + parallel.tp_rank)
    options = own_rdma_devices.with_own_devices(options, kv_args, logger)
    model = ModelConfig.from_server_args(server_args)
    refusals.refuse_unnamed_state(model, pool_kinds.kinds_beside(kv_args))
    loaded_digest = _weights_digest(server_args)
    dtype = str(kv_args.kv_cache_dtype_str)
    dtype = str(model.dtype).removeprefix("torch.") if dtype == "auto" else dtype
    draft = draft_of(server_args)
    named = "" if draft is None else draft.text(str(get_spec().speculative_algorithm))
    return EngineFacts(
        options=options,
        model=options.model_id or fingerprint(server_args.model_path, model.hf_text_config, ""),
        weights_digest="" if options.model_id else loaded_digest,
        loaded_digest=loaded_digest,
        settings=kv_settings.compared(server_args, model, model_id=options.model_id, logger=logger, draft=named),
        dtype=dtype,
        element_bytes=_element_bytes(dtype),
        kv_head_count=model.get_total_num_kv_heads(),
        windowed_kv_head_count=model.get_swa_num_kv_heads(1),
        full_layers=_of_stage(model.full_attention_layer_ids, model.num_hidden_layers),
        windowed_layers=_of_stage(model.swa_attention_layer_ids, model.num_hidden_layers),
        page_shares=page_shares.share_count(),
        draft=draft,
    )


def _of_stage(layers: Sequence[int] | None, count: int) -> list[int]:
    """Those of these layers that this pipeline stage has, of a model with ``count`` layers."""
    from sglang.srt.distributed.utils import get_pp_indices
    from sglang.srt.runtime_context import get_parallel

    first, end = get_pp_indices(count, get_parallel().pp_rank, get_parallel().pp_size)
    return [layer for layer in layers or () if first <= layer < end]


def draft_of(server_args: Any) -> Draft | None:
    """The draft model, which every rank knows, although of several pipeline stages only the last one has its layers."""
    from sglang.srt.configs.model_config import AttentionArch, ModelConfig
    from sglang.srt.runtime_context import get_spec

    if not get_spec().speculative_draft_model_path:
        return None
    model = ModelConfig.from_server_args(
        server_args,
        model_path=get_spec().speculative_draft_model_path,
        model_revision=get_spec().speculative_draft_model_revision,
        is_draft_model=True,
    )
    latent = model.attention_arch == AttentionArch.MLA
    return Draft(latent, 1 if latent else model.get_total_num_kv_heads())


def _weights_digest(server_args: Any) -> str:
    return _digest_at_start(
        server_args.model_path, server_args.revision, server_args.download_dir, str(server_args.load_format)
    )


@functools.cache
def _digest_at_start(model: str, revision: str | None, cache_folder: str | None, load_format: str) -> str:
    """Cached: an engine calls this again when it changes its role, and its files may have been replaced by then."""
    return digest_of_weights(
        model, revision=revision, cache_folder=cache_folder, load_format=load_format, logger=logger
    )


def options_given(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The object of options in the environment; raises OptionError if it is none."""
    text = environment.get(OPTIONS_VARIABLE, "")
    try:
        given = json.loads(text) if text else {}
    except (ValueError, RecursionError) as fault:  # a ValueError also for a number of thousands of digits
        raise OptionError(
            f'{OPTIONS_VARIABLE} is not JSON ({fault}), expected an object like \'{{"listen_host": "10.0.0.1"}}\''
        ) from fault
    if not isinstance(given, dict):
        raise OptionError(f"{OPTIONS_VARIABLE} is {shown(given)}, expected a JSON object of options")
    return given


def read_options(mode: str, kv_args: Any, environment: Mapping[str, str] = os.environ) -> Options:
    """Parses the user's options; raises OptionError."""
    given = options_given(environment)
    for name, (only, why) in _LEFT_TO_SGLANG.items():
        variable = variable_of(name)
        expected = "nothing" if only is None else f"{only!r} or nothing"
        if given.get(name, only) != only:
            raise OptionError(f"{OPTIONS_VARIABLE} has {name} {shown(given[name])}, expected {expected}, because {why}")
        if environment.get(variable) not in (None, "", only):
            raise OptionError(f"{variable} is {shown(environment[variable])}, expected {expected}, because {why}")
    # The tensor-parallel ranks have one name: what is offered to the engine that asked is fetched by each of them.
    engine_id = f"sglang-{mode}-{os.getppid()}-dp{kv_args.system_dp_rank or 0}-pp{kv_args.pp_rank}"
    options = _parse(given, mode, engine_id, environment)
    if options.shared_secret and (host := own_host.own_host(given, environment)):
        options = _parse({**given, "listen_host": host}, mode, engine_id, environment)
    if options.unheard_limit_seconds:
        return options
    return dataclasses.replace(options, unheard_limit_seconds=_other_leg_seconds(mode, environment))


def _other_leg_seconds(mode: str, environment: Mapping[str, str]) -> float:
    """How long the user has SGLang wait for a request's other leg; 0 = the user has not said."""
    try:
        return max(0.0, float(environment.get(_UNHEARD_VARIABLES[mode], "")))
    except ValueError:
        return 0.0  # SGLang takes its default, and says so


def api_key(options: Options) -> str:
    """The key for the HTTP servers of prefillers: the option, or else this engine's own; "" = none."""
    from sglang.srt.runtime_context import get_serving

    own = str(get_serving().api_key or "")
    return options.engine_api_key or (own if is_key(own) else "")


def early_options(mode: str) -> Options:
    """Parses the user's options when SGLang allocates memory, before the rank is known; raises OptionError."""
    return read_options(mode, _UNKNOWN_RANK)


def _parse(given: dict[str, Any], mode: str, engine_id: str, environment: Mapping[str, str]) -> Options:
    try:
        return parse_options(given, role=_ROLES[mode], engine_id=engine_id, kv_port=0, environment=environment)
    except OptionError as refused:
        raise OptionError(str(refused).replace(VLLM_OPTIONS_PLACE, OPTIONS_VARIABLE)) from None


def check_of(asked: str, *, latent: bool, on_cpu: bool) -> Check:
    """What ``last_token_check`` means here: the option, or the strictest where right pairs are known to be equal.

    Whether latent KV is computed alike on a CPU is not known: SGLang's kernels for it were not run there.
    """
    if asked in ("off", "warn", "fail"):
        return asked  # type: ignore[return-value]
    return "warn" if latent and on_cpu else "fail"


def device_of(kv_args: Any) -> int | None:
    """The index, in this process, of the GPU that this rank uses; None = it computes on the CPU."""
    from sglang.srt.runtime_context import get_device

    return None if get_device().device == "cpu" else int(kv_args.gpu_id or 0)


def modes(mode: str, server_args: Any) -> tuple[str, ...]:
    """SGLang's names of the engine's role and of those it may switch to, all checked now: a failed switch ends it."""
    return ("prefill", "decode") if getattr(server_args, "enable_pd_role_switch", False) else (mode,)


def _element_bytes(dtype: str) -> int:
    import torch

    found = getattr(torch, dtype, None)
    return int(found.itemsize) if isinstance(found, torch.dtype) else 1
