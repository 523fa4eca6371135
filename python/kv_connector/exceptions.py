"""What can go wrong, each with one sentence that names the remedy. Importable without a JVM."""

from __future__ import annotations


class KvConnectorError(Exception):
    """The parent of all errors that this package raises on purpose."""


class OptionError(KvConnectorError):
    """An option is unknown, of the wrong type, or out of range."""


class HandoverError(KvConnectorError):
    """The ranks that share a messenger did not all hand over their KV memory."""


class PreflightError(KvConnectorError):
    """The JVM cannot be started here; found out before trying."""


class BootError(KvConnectorError):
    """The JVM was started, or should have been, and it failed."""


class MessengerError(KvConnectorError):
    """The messenger refused a call; the message is the sentence that Java wrote."""
