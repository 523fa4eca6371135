"""The checkpoint that a server was started from, and why tensors that a sender has are not loaded in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kv_connector.weights.checkpoint import CheckpointError, served_manifest
from kv_connector.weights.experts import named_as_in
from kv_connector.weights.manifest import Manifest
from kv_connector.weights.shares import Share

TIED = frozenset({"lm_head.weight"})
"""Not loaded where the embedding is the head too: some checkpoints have it all the same, and trainers do not.

So its bytes have to be the embedding's, which is seen when they have landed.
"""


class ServedCheckpoint:
    """That of one engine. For its thread."""

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        """Its tensors, as they were when a sender was compared last; None before."""
        self.tied = False
        """Whether the embedding is the head too, as it was then."""

    def unfit(self, share: Share, find_folder: Callable[[], Path], *, tied: bool) -> str:
        """Why these tensors cannot be loaded; "" if nothing speaks against them.

        ``find_folder`` returns the checkpoint's folder; ``tied``: the embedding is the head too.
        """
        try:
            served = served_manifest(find_folder)
        except CheckpointError as unknown:
            return str(unknown)
        self.manifest, self.tied = served, tied
        named = named_as_in(served, share.whole)
        if share.count > 1 and named.places != share.whole.places:
            return "experts that are fused into one tensor cannot be sent by several trainer ranks: gather them first"
        return named.difference_from(served, TIED if tied else frozenset())
