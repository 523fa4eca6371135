"""What the first rank of an engine decides for all its ranks about an update of weights."""

from __future__ import annotations

from dataclasses import dataclass

from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

TORN_EXIT = 70
"""The exit code of a process whose weights are of neither version."""


@dataclass(frozen=True)
class Decision:
    """Whether to load, and from where."""

    reason: str
    """Why nothing is loaded; "" = it is."""
    version: int = 0
    pid: int = 0
    memfds: tuple[int, ...] = ()
    """The landings' descriptors in process ``pid``, by the trainer's ranks."""
    share: Share | None = None
    """One rank's, by which those of the others are known."""
    manifest: Manifest | None = None
    """All tensors by the names of the checkpoint; places count where there is one landing."""
    name: str = ""
    """Of the weights: that of all bytes that have landed, ``landed_name``."""
