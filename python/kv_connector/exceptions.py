"""The exceptions of this package, each with a one-sentence message that names the remedy. Needs no JVM."""

from __future__ import annotations


class KvConnectorError(Exception):
    """The base class of all errors that this package raises on purpose."""


class OptionError(KvConnectorError):
    """An option is unknown, of the wrong type, or out of range."""


class HandoverError(KvConnectorError):
    """The ranks that share a messenger did not all hand over their KV memory."""


class PreflightError(KvConnectorError):
    """The JVM cannot be started here; detected before it is attempted."""


class BootError(KvConnectorError):
    """The start of the JVM failed."""


class MessengerError(KvConnectorError):
    """The messenger refused a call; the message comes from Java."""


class WeightsError(KvConnectorError):
    """Weights cannot be read, or were not taken by a server."""
