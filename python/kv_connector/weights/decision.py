"""What the first rank of an engine decides for all its ranks about an update of weights."""

from __future__ import annotations

from dataclasses import dataclass

from kv_connector.weights.manifest import Manifest

TIED = frozenset({"lm_head.weight"})
"""Not loaded where the embedding is the head too: some checkpoints have it all the same, and trainers do not."""
TORN_EXIT = 70
"""The exit code of a process whose weights are of neither version."""


@dataclass(frozen=True)
class Decision:
    """Whether to load, and from where."""

    reason: str
    """Why nothing is loaded; "" = it is."""
    version: int = 0
    pid: int = 0
    memfd: int = -1
    manifest: Manifest | None = None
