"""Checks that the TLS options are consistent and their files readable; Java checks the contents."""

from __future__ import annotations

from collections.abc import Mapping

from kv_connector.configuration import small_files
from kv_connector.exceptions import OptionError

PEM_BYTES_MAX = 16 << 20
"""More than any bundle of authorities."""


def check(paths: Mapping[str, str]) -> None:
    """Checks the paths, given by option; raises :class:`OptionError`, one sentence, for the first error."""
    missing = [name for name, path in paths.items() if not path]
    if len(missing) == len(paths):
        return
    if missing:
        raise OptionError(
            f"option {missing[0]!r} is not set, and another of {', '.join(paths)} is: set all three, or none"
        )
    for name, path in paths.items():
        _require_pem(name, path)


def _require_pem(name: str, path: str) -> None:
    try:
        found = b"-----BEGIN " in small_files.read(path, PEM_BYTES_MAX)
    except OSError as failure:
        raise OptionError(
            f"option {name!r} is {path!r}, which cannot be read ({failure.strerror}), expected a PEM file"
        ) from failure
    if not found:
        raise OptionError(f"option {name!r} is {path!r}, which holds no '-----BEGIN', expected a PEM file")
