"""The connector, with forward passes that stand after each layer but the last until that layer has left.

For a prefiller under test, named as its `kv_connector_module_path`. Passes are held while the file exists that
KV_MESSENGER_HOLD_PASSES names; all that they compute must have been granted before, or they are held to their limit.
"""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from typing import Any

from kv_connector.vllm import connector
from server_process import LOOPBACK, metric_sum

VARIABLE = "KV_MESSENGER_HOLD_PASSES"
LEAVES_LIMIT_SECONDS = 120.0
"""Bounds a pass whose layers do not leave: the test that looks at its times fails."""


class KvMessengerConnector(connector.KvMessengerConnector):  # type: ignore[misc]
    """Used by the worker's thread. Does nothing to the messenger: it is asked by its metrics page."""

    _due = -1.0
    """How many layers have left when those that passes were held for have; negative when none are."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Counts the layer, and waits for it to leave unless it is the pass's last."""
        if not Path(os.environ[VARIABLE]).exists():
            self._due = -1.0
            super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)
            return
        if self._due < 0:
            self._due = self._layers_sent()
        super().save_kv_layer(layer_name, kv_layer, attn_metadata, **kwargs)
        self._due += 1
        if layer_name != self._caches.kv_cache_groups[0].layer_names[-1]:
            limit = time.monotonic() + LEAVES_LIMIT_SECONDS
            while self._layers_sent() < self._due and time.monotonic() < limit:
                time.sleep(0.001)

    def _layers_sent(self) -> float:
        port = self._config.kv_transfer_config.kv_connector_extra_config["metrics_port"]
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=LEAVES_LIMIT_SECONDS) as page:
            return metric_sum(page.read().decode(), "kv_messenger_layers_sent_total", {})
