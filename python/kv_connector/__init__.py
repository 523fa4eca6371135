"""KV Messenger for Python engines. Importing it starts nothing."""

from kv_connector._version import __version__
from kv_connector.configuration.options import Options, parse_options
from kv_connector.exceptions import (
    BootError,
    HandoverError,
    KvConnectorError,
    MessengerError,
    OptionError,
    PreflightError,
)
from kv_connector.memory.geometry import ContextRow, Geometry, Layer, Memory, Rank
from kv_connector.memory.layer_counter import LayerCounter
from kv_connector.runtime.commands import Command
from kv_connector.runtime.facade import (
    LAG_LEAD_ONLY,
    LAG_NONE,
    Arrived,
    Connected,
    Event,
    Failed,
    Granted,
    LeakCheck,
    Log,
    Messenger,
    MessengerPort,
    Opened,
    Prefilled,
    Quarantined,
    Released,
    Stats,
    Stopped,
    SubjectMessenger,
    Timeline,
)

__all__ = [
    "LAG_LEAD_ONLY",
    "LAG_NONE",
    "Arrived",
    "BootError",
    "Command",
    "Connected",
    "ContextRow",
    "Event",
    "Failed",
    "Geometry",
    "Granted",
    "HandoverError",
    "KvConnectorError",
    "Layer",
    "LayerCounter",
    "LeakCheck",
    "Log",
    "Memory",
    "Messenger",
    "MessengerError",
    "MessengerPort",
    "Opened",
    "OptionError",
    "Options",
    "Prefilled",
    "PreflightError",
    "Quarantined",
    "Rank",
    "Released",
    "Stats",
    "Stopped",
    "SubjectMessenger",
    "Timeline",
    "__version__",
    "parse_options",
]
