"""KV Messenger as an SGLang disaggregation backend. Importing this package imports neither SGLang nor a JVM."""

from __future__ import annotations

from kv_connector_door import BACKEND_NAME

__all__ = ["BACKEND_NAME", "register"]


def register() -> None:
    """Registers the backend. As a plugin it runs in every process of SGLang, even in those that move no KV."""
    from kv_connector.sglang.registration import register_backend

    register_backend()
