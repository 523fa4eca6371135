"""What a test has one rank of a vLLM server fail at: `--worker-extension-cls weights_extension.WeightFaults`.

vLLM mixes the class into its workers, whose methods `/collective_rpc` calls.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from typing import Any

LOADED_FIRST = 5
"""Tensors that a rank loads before it fails."""


class WeightFaults:
    """Faults of one worker, which last until the next call."""

    rank: int
    weight_transfer_engine: Any

    def fail_at_weights(self, what: str, rank: str) -> str:
        """`what` is map, load, kill, or anything else for no fault; of the rank of that number."""
        from kv_connector.weights import landed_tensors, landing

        landed_tensors.map_of_process = landing.map_of_process
        model = self.weight_transfer_engine.model
        vars(model).pop("load_weights", None)
        if self.rank != int(rank):
            return ""
        if what == "map":
            landed_tensors.map_of_process = denied
            self.weight_transfer_engine._landings = landed_tensors.MappedLandings()
        elif what in ("load", "kill"):
            whole = model.load_weights
            model.load_weights = lambda tensors: whole(cut_short(tensors, what))
        return what


def denied(pid: int, memfd: int, length_bytes: int) -> memoryview:
    raise PermissionError(13, f"Permission denied: {length_bytes} bytes of {memfd} of {pid}")


def cut_short(tensors: Iterator[Any], what: str) -> Iterator[Any]:
    yield from itertools.islice(tensors, LOADED_FIRST)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise MemoryError("as when memory runs out half-way")
