"""All settings of a vLLM engine that decide which KV it computes, gathered for the comparison with its peers.

Used by the worker's main thread, once, while the engine starts and after its model was built.
"""

from __future__ import annotations

import logging
from typing import Any

from kv_connector.naming import processor_files
from kv_connector.naming.model_settings import Settings, bounded, model_name, text_of
from kv_connector.naming.weights_digest import folder_of
from kv_connector.vllm import built_settings, engine_settings, engine_variables, page_bytes
from kv_connector.vllm.drafts import draft_with_kv


def compared(
    vllm_config: Any, packing: str, written: str, *, model_id: str, stage: tuple[int, int], logger: logging.Logger
) -> Settings:
    """The settings by name, most informative first; ``stage`` is this worker's, and how many there are.

    ``packing`` names the backends, and ``written`` what their pages hold, "" if it is not known.
    """
    model = vllm_config.model_config
    settings = {
        "model": text_of(model_name(model.model, model_id)),
        **engine_settings.of_model(model),
        **engine_settings.of_engine(vllm_config),
        **_of_draft(vllm_config, model_id),
        **engine_variables.of_process(),
        **_of_processors(vllm_config, logger),
        "page format": text_of(packing),  # follows from settings above: on a CPU with AMX from the dtype
        **({page_bytes.NAME: text_of(written)} if written else {}),
        **_of_built(vllm_config, stage, logger),
    }
    return bounded(settings)


def _of_draft(vllm_config: Any, model_id: str) -> Settings:
    """The settings of a draft whose KV lies in the same pages; one without KV may differ."""
    draft = draft_with_kv(vllm_config)
    if draft is None:
        return {}
    settings = {
        "draft.method": text_of(vllm_config.speculative_config.method),
        "draft.model": text_of(model_name(draft.model, model_id)),
        **engine_settings.of_model(draft, "draft."),
    }
    quantization = getattr(draft, "quantization", None)
    return settings if quantization is None else {**settings, "draft.quantization": text_of(quantization)}


def _of_processors(vllm_config: Any, logger: logging.Logger) -> Settings:
    """What is made of images, videos and sounds; empty for a model of text and where the files cannot be found."""
    model = vllm_config.model_config
    if getattr(model, "multimodal_config", None) is None:
        return {}
    try:
        return processor_files.of_folder(folder_of(model.model, model.revision, vllm_config.load_config.download_dir))
    except Exception as unknown:
        logger.info("how images and sounds are processed is not compared with peers: %s", unknown)
        return {}


def _of_built(vllm_config: Any, stage: tuple[int, int], logger: logging.Logger) -> Settings:
    """What layers were built with; empty on any fault, because a start must not fail for a comparison."""
    try:
        return built_settings.of_layers(vllm_config, stage)
    except Exception:
        logger.warning("what the model's layers were built with is not compared with peers", exc_info=True)
        return {}
