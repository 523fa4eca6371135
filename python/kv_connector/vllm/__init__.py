"""KV Messenger as a vLLM connector. Importing this package imports neither vLLM nor a JVM."""

from __future__ import annotations

import logging

CONNECTOR_NAME = "KvMessengerConnector"
CONNECTOR_MODULE = "kv_connector.vllm.connector"


def register() -> None:
    """Registers the connector with vLLM's factory; never raises.

    As a general plugin it is called unguarded in every process of every server of the environment, even if another
    connector or none is configured. So an unsupported vLLM costs one log line here, and is an error only when the
    connector is loaded (``vllm_api``).
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        if CONNECTOR_NAME not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(CONNECTOR_NAME, CONNECTOR_MODULE, CONNECTOR_NAME)
    except Exception as unfit:
        logging.getLogger("vllm.kv_messenger").warning(
            "%s is not registered with this vLLM (%s: %s); servers that do not use it are not affected",
            CONNECTOR_NAME,
            type(unfit).__name__,
            unfit,
        )
