"""KV Messenger as an SGLang disaggregation backend. Importing this package imports neither SGLang nor a JVM."""

from __future__ import annotations

BACKEND_NAME = "kv_messenger"
"""The value of ``--disaggregation-transfer-backend``."""


def register() -> None:
    """Registers the backend. As a plugin it runs in every process of SGLang, even in those that move no KV."""
    from kv_connector.sglang.registration import register_backend

    register_backend()
