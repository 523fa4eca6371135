"""Switches the comparison of settings and weights off, so that only the comparison of computed KV is left.

SGLang loads it as a plugin in each of its processes. With ``PROOF_COMPARES_ALL`` a decoder compares each prompt, not
only the first of a pair.
"""

from __future__ import annotations

import importlib
import os
from typing import Any


def register() -> None:
    facts: Any = importlib.import_module("kv_connector.sglang.engine_facts")
    for function in ("fingerprint", "_weights_digest"):
        assert hasattr(facts, function), f"engine_facts has no {function} any more: it compares settings elsewhere"
    facts.fingerprint = lambda *_: "settings that are not compared"
    facts._weights_digest = lambda _: ""
    settings: Any = importlib.import_module("kv_connector.sglang.kv_settings")
    assert hasattr(settings, "compared"), "kv_settings has no comparison any more"
    settings.compared = lambda *_, **__: {}
    if os.environ.get("PROOF_COMPARES_ALL"):
        importlib.import_module("kv_connector.sglang.pair_states").PairStates.compares_all = True
