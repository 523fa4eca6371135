"""The options as Java reads them: names in docs/boundary.md, times in milliseconds. Pure."""

from __future__ import annotations

from typing import Any

from kv_connector.configuration.option_values import OptionSpec


def boundary_name(name: str) -> str:
    """An option's name in docs/boundary.md."""
    first, *rest = name.replace("_seconds", "_millis").split("_")
    return first + "".join(word.capitalize() for word in rest)


def for_java(spec: OptionSpec, value: Any) -> object:
    """An option's value."""
    if spec.kind == "seconds":
        return millis(value)
    return list(value) if isinstance(value, tuple) else value


def millis(seconds: float) -> int:
    """A time, at least one millisecond unless it is 0."""
    return max(1, round(seconds * 1000)) if seconds else 0
