"""Whether all KV in an engine's prefix cache is of the weights that the engine has now. Pure."""

from __future__ import annotations


class CachedWeights:
    """One engine's prefix cache. Used by the engine's own thread only.

    Engines can be given other weights without emptying their cache. What it has then is of several weights, and only
    the engine itself may go on using it.
    """

    def __init__(self) -> None:
        self.are_current = True
        """Whether nothing in the cache is of earlier weights."""
        self._holds_some = False

    def filled(self) -> None:
        """KV of the current weights is computed, or added, and may be in the cache from now on."""
        self._holds_some = True

    def changed(self) -> None:
        """The engine may have other weights now."""
        if self._holds_some:
            self.are_current = False

    def emptied(self) -> None:
        """The cache was emptied while nothing was computed."""
        self.are_current, self._holds_some = True, False
