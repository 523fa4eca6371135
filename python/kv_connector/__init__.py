"""KV Messenger for Python engines. Importing it starts nothing."""

from kv_connector._facade import (
    LAG_LEAD_ONLY,
    LAG_NONE,
    Arrived,
    Command,
    Event,
    Failed,
    Geometry,
    Layer,
    LeakCheck,
    Log,
    Memory,
    Messenger,
    MessengerPort,
    Opened,
    Rank,
    Released,
    Stats,
    Timeline,
)
from kv_connector._version import __version__
from kv_connector.exceptions import BootError, KvConnectorError, MessengerError, OptionError, PreflightError
from kv_connector.layer_counter import LayerCounter
from kv_connector.options import Options, parse_options

__all__ = [
    "LAG_LEAD_ONLY",
    "LAG_NONE",
    "Arrived",
    "BootError",
    "Command",
    "Event",
    "Failed",
    "Geometry",
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
    "PreflightError",
    "Rank",
    "Released",
    "Stats",
    "Timeline",
    "__version__",
    "parse_options",
]
