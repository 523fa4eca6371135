"""Whether the options for TLS belong together, and their files can be read; what is in them is Java's to check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kv_connector.exceptions import OptionError


def check(said: Mapping[str, str]) -> None:
    """Checks the paths by option; raises :class:`OptionError` with one sentence on the first thing wrong."""
    missing = [name for name, path in said.items() if not path]
    if len(missing) == len(said):
        return
    if missing:
        raise OptionError(
            f"option {missing[0]!r} is not set, and another of {', '.join(said)} is: set all three, or none"
        )
    for name, path in said.items():
        _require_pem(name, path)


def _require_pem(name: str, path: str) -> None:
    try:
        found = b"-----BEGIN " in Path(path).read_bytes()
    except OSError as failure:
        raise OptionError(
            f"option {name!r} is {path!r}, which cannot be read ({failure.strerror}), expected a PEM file"
        ) from failure
    if not found:
        raise OptionError(f"option {name!r} is {path!r}, which holds no '-----BEGIN', expected a PEM file")
