"""A plug-in of SGLang with which a prefiller's passes stand after each layer but the last until that layer has left.

Passes are held while the file exists that KV_MESSENGER_HOLD_PASSES names; all that they compute must have been granted
before, or they are held to their limit. The test engine of vLLM has the same: held_passes.py.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any

VARIABLE = "KV_MESSENGER_HOLD_PASSES"
LEAVES_LIMIT_SECONDS = 120.0
"""Bounds a pass whose layers do not leave: the test that looks at its times fails."""
SENT = "kv_messenger_layers_sent_total"


def register() -> None:
    from kv_connector.memory.layer_counter import LayerCounter

    file, counted = Path(os.environ[VARIABLE]), LayerCounter.layer_complete
    port = json.loads(os.environ["KV_MESSENGER_OPTIONS"])["metrics_port"]
    due = -1.0

    def layer_complete(counter: LayerCounter, name: str) -> Any:
        nonlocal due
        due = (layers_sent(port) if due < 0 else due) + 1 if file.exists() else -1.0
        result = counted(counter, name)
        limit = time.monotonic() + LEAVES_LIMIT_SECONDS
        while name != counter.observed_order[-1] and layers_sent(port) < due and time.monotonic() < limit:
            time.sleep(0.001)
        return result

    LayerCounter.layer_complete = layer_complete


def layers_sent(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LEAVES_LIMIT_SECONDS) as page:
        samples = [line.rpartition(" ") for line in page.read().decode().splitlines()]
    return sum(float(value) for name, _, value in samples if name.partition("{")[0] == SENT)
