"""Names an engine's weights after they were changed while it runs. Pure.

The weights that engines loaded at their start are compared when their messengers connect (``weights_digest``). If the
prefiller then gets other weights before the decoder does, the answer would have tokens of neither model. So each
prompt's digest also covers such changes: by the bytes that have landed, where this package received them; by the
version that the engine was given with the weights, else by the files that were loaded, else by the number of changes.

A version is the word of a client, and two trainers may count alike. So it never takes the place of bytes that are
known.
"""

from __future__ import annotations


class ChangedWeights:
    """The weights of one engine. Used by the engine's own thread only.

    A version is the engine's own name of its weights, "" if they have none.
    """

    def __init__(self) -> None:
        self._start_digest = ""
        self._files_digest = ""
        self._changes = 0
        self._since_version = ""
        """The engine's version at the last change that came without one; a new version covers that change."""
        self._since_loaded = False
        """Whether all weights were loaded from files since then, so that the version names none of them."""
        self._unknown = ""
        """A name that no other engine has, if the weights are unknown; else ""."""
        self._landed = ""
        """What has landed, until all weights are loaded from files that are known; all else has come on top of it."""
        self._landed_version = ""
        """The version that came with it, by which it is meant where the engine is told it again."""

    def started_with(self, digest: str) -> None:
        """Sets the ``weights_digest`` of the weights loaded at the start; "" if unknown."""
        self._start_digest = digest

    def on_loaded(self, digest: str, version: str) -> None:
        """All weights were loaded from files with this digest; "" if unknown."""
        self._unknown = ""
        if not digest:
            self.on_changed(version)
            return
        self._files_digest, self._landed = "" if digest == self._start_digest else digest, ""
        self._changes, self._since_version, self._since_loaded = 0, version, True

    def on_landed(self, name: str, version: str) -> None:
        """All weights are those that have landed, and the engine calls them by this version.

        ``name`` depends on all bytes: ``landed_name``.
        """
        self.on_versioned(version)
        self._landed, self._landed_version = f"landed {name}", version

    def on_changed(self, version: str) -> None:
        """Weights were changed by other means, without a version."""
        self._forget_unless(version)
        self._changes += 1

    def on_lost(self, word: str, version: str) -> None:
        """The weights are unknown, and match no other engine's, until all are loaded from files or a version is set.

        The version that the engine has meanwhile, also one that it had from its start on, names them no more.
        """
        self._forget_unless(version)
        self._unknown = word

    def on_versioned(self, version: str) -> None:
        """A non-empty version replaces every earlier identification of the weights but what has landed.

        An empty one replaces nothing.
        """
        if version:
            self._files_digest, self._changes, self._unknown = "", 0, ""
        elif self._since_version:  # the earlier version still names these weights
            self._files_digest, self._changes = self._named(self._since_version), 0
        self._since_version, self._since_loaded = version, False

    @property
    def is_by_clients(self) -> bool:
        """Whether a version alone is the name: nothing of what has landed is known to be left."""
        return not self._landed

    def name(self, version: str) -> str:
        """The name of the weights in prompt digests; "" for those of the start."""
        if version in ("", self._since_version):  # the earlier version still names weights whose version was dropped
            named = (self._named(self._since_version), self._unknown)
        else:
            named = (self._of(version), "")
        return ", ".join(part for part in (self._landed, *named) if part)

    def _named(self, version: str) -> str:
        counted = f"{self._changes} changes" if self._changes else ""
        of_version = "" if self._since_loaded else self._of(version)
        return ", ".join(part for part in (of_version, self._files_digest, counted) if part)

    def _of(self, version: str) -> str:
        """What a version adds to what has landed."""
        return "" if self._landed and version == self._landed_version else version

    def _forget_unless(self, version: str) -> None:
        if version != self._since_version:
            self.on_versioned(version)
