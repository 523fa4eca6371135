"""KV Messenger as vLLM's connector and as a backend of its weight transfer. Importing it imports no vLLM, no JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable

CONNECTOR_NAME = "KvMessengerConnector"
CONNECTOR_MODULE = "kv_connector.vllm.connector"
WEIGHTS_BACKEND = "kv_messenger"
"""The ``backend`` of ``--weight-transfer-config``."""


def register() -> None:
    """Registers the connector and the backend of weights with vLLM's factories; never raises.

    As a general plugin it is called unguarded in every process of every server of the environment, even if another
    connector or none is configured. So an unsupported vLLM costs one log line here, and is an error only when the
    connector is loaded (``vllm_api``).
    """
    _guarded(CONNECTOR_NAME, _register_connector)
    _guarded(f"the weight-transfer backend {WEIGHTS_BACKEND}", _register_weights)


def _register_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if CONNECTOR_NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(CONNECTOR_NAME, CONNECTOR_MODULE, CONNECTOR_NAME)


def _register_weights() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core import EngineCore

    from kv_connector.vllm.finished_updates import finish_in_one_call
    from kv_connector.vllm.weights_at_rest import load_at_rest

    load_at_rest(EngineCore)
    finish_in_one_call(AsyncLLM)
    if WEIGHTS_BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            WEIGHTS_BACKEND, "kv_connector.vllm.weights", "KvMessengerWeightEngine"
        )


def _guarded(what: str, registering: Callable[[], None]) -> None:
    try:
        registering()
    except Exception as unfit:
        logging.getLogger("vllm.kv_messenger").warning(
            "%s is not registered with this vLLM (%s: %s); servers that do not use it are not affected",
            what,
            type(unfit).__name__,
            unfit,
        )
