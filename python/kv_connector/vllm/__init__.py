"""KV Messenger as a vLLM connector. Importing this package imports neither vLLM nor a JVM."""

from __future__ import annotations

CONNECTOR_NAME = "KvMessengerConnector"
CONNECTOR_MODULE = "kv_connector.vllm.connector"


def register() -> None:
    """Tells vLLM where the connector is. A general plugin: vLLM runs it in every process, maybe more than once."""
    from kv_connector.vllm.vllm_api import register_connector_once

    register_connector_once(CONNECTOR_NAME, CONNECTOR_MODULE)
