"""All settings of an SGLang engine that decide which KV it computes, gathered for the comparison with its peers.

Used by each rank's scheduler thread, when its messenger opens and the model has been built.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from pathlib import Path, PurePath
from typing import Any

from kv_connector.naming import built_rope
from kv_connector.naming.model_settings import Settings, bounded, model_name, of_configuration, of_options, text_of
from kv_connector.sglang.argument_lists import HARMLESS
from kv_connector.sglang.variable_list import of_variables

_ROPES = "sglang.srt.layers.rotary_embedding.factory"
_DRAFT = "draft"
FOLDER_FORMATS = frozenset(
    (
        *("auto", "bitsandbytes", "fastsafetensors", "gguf", "instanttensor", "layered", "local_cached", "mistral"),
        *("npcache", "presharded", "pt", "remote", "runai_streamer", "safetensors", "sharded_state"),
    )
)
"""Load formats whose weights are those of the model's files. Others invent them, or have them from elsewhere."""
_SOURCES = (
    "model_loader_extra_config",
    "remote_instance_weight_loader_seed_instance_ip",
    "remote_instance_weight_loader_seed_instance_service_port",
)
"""Arguments that say where a format that is none of these has weights from."""
_OWN_MODELS = ("auto", "sglang")
_FILES = ("dllm_algorithm_config", "quantization_param_path", "rl_quant_profile")
"""Arguments that name a file, which lies elsewhere on another host: what is in it is compared."""
_QUANTISED_BY = "qlora_adapter_name_or_path"
_FOLDERS = ("kt_weight_path", "modelopt_checkpoint_restore_path")
"""Arguments that name a folder of weights: its name is compared."""


def compared(server_args: Any, model: Any, *, model_id: str, logger: logging.Logger, draft: str = "") -> Settings:
    """The settings by name, most informative first; ``model`` is SGLang's ``ModelConfig`` after all overrides.

    ``draft`` names a draft that has KV of its own; "" = there is none.
    """
    text, whole = model.hf_text_config, model.hf_config
    settings = {"model": text_of(model_name(server_args.model_path, model_id))}
    if draft:
        settings[_DRAFT] = draft
    settings.update(of_configuration(text))
    if whole is not text:
        beside = of_configuration(whole, without=("text_config", "llm_config", "language_config", *settings))
        settings.update({name: value for name, value in beside.items() if name not in settings})
    settings["server_args.dtype"] = text_of(model.dtype)
    if model.quantization is not None:
        settings["server_args.quantization"] = text_of(model.quantization)
    settings.update(_of_arguments(server_args))
    settings.update(_of_environment(logger))
    settings.update(_of_built(logger))
    return bounded(settings)


def _of_arguments(server_args: Any) -> Settings:
    settings = of_options("server_args", server_args, HARMLESS)
    for name in (f"server_args.{each}" for each in (*_FILES, *_FOLDERS)):
        if name in settings:
            place = str(getattr(server_args, name.partition(".")[2]))
            settings[name] = _file_text(place) if name.partition(".")[2] in _FILES else PurePath(place).name
    settings.update(_of_quantised_modules(server_args.model_loader_extra_config))
    load_format = getattr(server_args.load_format, "value", server_args.load_format)
    if load_format is not None and load_format not in FOLDER_FORMATS:
        settings.update({f"server_args.{each}": text_of(getattr(server_args, each, None)) for each in _SOURCES})
    return {name: value for name, value in settings.items() if not _is_default(name, value)}


def _of_quantised_modules(extra: Any) -> Settings:
    """The adapter that says which modules bitsandbytes quantises; the rest of this argument is how files are read."""
    try:
        given = json.loads(extra) if isinstance(extra, str) else extra or {}
        adapter = given.get(_QUANTISED_BY)
    except (AttributeError, ValueError):
        return {}
    name = f"server_args.model_loader_extra_config.{_QUANTISED_BY}"
    return {} if adapter is None else {name: PurePath(str(adapter)).name}


def _is_default(name: str, value: str) -> bool:
    return (
        (name == "server_args.load_format" and value in FOLDER_FORMATS)
        or (name == "server_args.model_impl" and value in _OWN_MODELS)
        or (name == "server_args.deepep_dispatcher_output_dtype" and value == "auto")
    )


def _file_text(place: str) -> str:
    path = Path(place)
    try:
        return f"{path.name}, digest {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}"
    except OSError:
        return text_of(path.name)


def _of_environment(logger: logging.Logger) -> Settings:
    """The environment's part; empty on any fault, because a start must not fail for a comparison."""
    try:
        from sglang.srt.environ import envs

        return of_variables(envs)
    except Exception:
        logger.warning("SGLang's environment variables are not compared with peers", exc_info=True)
        return {}


def _of_built(logger: logging.Logger) -> Settings:
    """What layers were built with; empty on any fault, because a start must not fail for a comparison."""
    try:
        built = getattr(sys.modules.get(_ROPES), "_ROPE_DICT", None)
        return built_rope.of_modules(built.values()) if built else {}
    except Exception:
        logger.warning("what the model's layers were built with is not compared with peers", exc_info=True)
        return {}
