"""This package's connectors in an engine core. Needs no import of vLLM."""

from __future__ import annotations

from typing import Any

WEIGHTS_SESSION = "_kv_messenger_weights_session"
"""The core's attribute with its updates, where this package takes the weights: ``weights_at_rest``."""


def own_connectors(core: Any) -> list[Any]:
    """Those of the core's scheduler, alone or inside a MultiConnector."""
    outer = getattr(getattr(core, "scheduler", None), "connector", None)
    found = getattr(outer, "_connectors", None) or [outer]
    return [connector for connector in found if hasattr(connector, "on_weights_called")]
