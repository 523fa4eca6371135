"""Names the weights that an engine computes with, where they were changed while it runs. Pure.

What engines loaded at their start is compared when their messengers meet (``weights_digest``). A prefiller that is
given other weights afterwards, and a decoder that is not yet, would answer with tokens that neither model has. So each
prompt is named by what was changed as well: by the version that the engine was told with it, or else by the files that
were loaded, or else by how often something was changed.
"""

from __future__ import annotations


class ChangedWeights:
    """Those of one engine. Its own thread only.

    Versions are the engine's own words for its weights, "" for what it has no word for.
    """

    def __init__(self) -> None:
        self._start_digest = ""
        self._files_digest = ""
        self._changes = 0
        self._since_version = ""
        """What the engine said at the last change without a version of its own: another word covers that change."""
        self._since_loaded = False
        """Whether all weights came from files since then, so that the version is of none that the engine has."""
        self._unknown = ""
        """A word that no other engine has, where nothing at all is known of the weights; "" else."""

    def started_with(self, digest: str) -> None:
        """What the engine has loaded at its start, by ``weights_digest``; "" where that is not known."""
        self._start_digest = digest

    def on_loaded(self, digest: str, version: str) -> None:
        """All weights were loaded from files of this digest; "" where that is not known."""
        self._unknown = ""
        if not digest:
            self.on_changed(version)
            return
        self._files_digest = "" if digest == self._start_digest else digest
        self._changes, self._since_version, self._since_loaded = 0, version, True

    def on_changed(self, version: str) -> None:
        """Weights were given to the engine in another way, and it was told no version with them."""
        self._forget_unless(version)
        self._changes += 1

    def on_lost(self, word: str) -> None:
        """What the engine has is not known, until it loads all from files or is told a version: it fits no other."""
        self._unknown = word

    def on_versioned(self, version: str) -> None:
        """The engine was told a version with its weights: it says all there is to say. Without one it says nothing."""
        if version:
            self._files_digest, self._changes, self._unknown = "", 0, ""
        elif self._since_version:  # what was said before goes on to name what the engine has
            self._files_digest, self._changes = self._said(self._since_version), 0
        self._since_version, self._since_loaded = version, False

    def name(self, version: str) -> str:
        """What prompts are named by; "" for the weights of the start."""
        if version != self._since_version:
            return version
        return ", ".join(part for part in (self._said(version), self._unknown) if part)

    def _said(self, version: str) -> str:
        counted = f"{self._changes} changes" if self._changes else ""
        of_version = "" if self._since_loaded else version
        return ", ".join(part for part in (of_version, self._files_digest, counted) if part)

    def _forget_unless(self, version: str) -> None:
        if version != self._since_version:
            self.on_versioned(version)
