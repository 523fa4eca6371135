"""Switches the comparison of settings and weights off, so that only the comparison of computed KV is left.

vLLM loads it as a plugin in each of its processes. ``PROOF_KV_SCALE`` sets the scales of K and V, as a checkpoint does
that brings its own. With ``PROOF_EACH`` no pair stays proven, so that each request goes first. With
``PROOF_CANNOT_STOP`` a running request counts as one that cannot be stopped.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def register() -> None:
    start: Any = importlib.import_module("kv_connector.vllm.rank_start").RankStart
    for method in ("_model_name", "_weights_digest"):
        assert hasattr(start, method), f"RankStart has no {method} any more: it compares settings elsewhere"
    start._model_name = lambda _: "settings that are not compared"
    start._weights_digest = lambda _: ""
    compared: Any = importlib.import_module("kv_connector.vllm.kv_settings")
    assert hasattr(compared, "compared"), "kv_settings has no compared any more: settings are collected elsewhere"
    compared.compared = lambda *_, **__: {}
    if scale := os.environ.get("PROOF_KV_SCALE"):
        _set_scales(float(scale))
    if os.environ.get("PROOF_CANNOT_STOP"):
        connector: Any = importlib.import_module("kv_connector.vllm.connector")
        assert hasattr(connector, "can_stop"), "the connector asks otherwise which requests can be stopped"
        connector.can_stop = lambda *_: False
    if os.environ.get("PROOF_EACH"):
        _prove_each()


def _prove_each() -> None:
    found: Any = importlib.import_module("kv_connector.vllm.pair_proofs")
    original = found.PairProofs._conclude

    def conclude(proofs: Any, request: str, judged: Any, *args: Any, **more: Any) -> None:
        original(proofs, request, judged, *args, **more)
        record = proofs._record(judged.pair)
        if record.state is found.PairState.PROVEN:
            proofs._start_anew(record)

    found.PairProofs._conclude = conclude


def _set_scales(scale: float) -> None:
    module: Any = importlib.import_module("vllm.model_executor.layers.attention.attention")
    original = module.set_default_quant_scales

    def set_scales(layer: Any, *args: Any, **more: Any) -> None:
        original(layer, *args, **more)
        for name in ("_k_scale", "_v_scale"):
            getattr(layer, name).fill_(scale)
            setattr(layer, f"{name}_float", scale)

    module.set_default_quant_scales = set_scales
