"""KV Messenger as an SGLang disaggregation backend. Importing this package imports neither SGLang nor a JVM."""

from __future__ import annotations

BACKEND_NAME = "kv_messenger"
"""What ``--disaggregation-transfer-backend`` is told."""


def register() -> None:
    """Makes the backend known. A plugin: SGLang runs it in every process, also in those that move no KV."""
    from kv_connector.sglang.registration import register_backend

    register_backend()
