"""Reads files that an option names, whatever is there: a pipe without a writer, a device without an end."""

from __future__ import annotations

import errno
import os
import select

WAIT_SECONDS = 5.0
"""A pipe's writer, such as a shell's process substitution, begins within this time."""


def read(path: str, most_bytes: int) -> bytes:
    """The file's bytes; raises OSError with a reason, also if it is longer or has nothing to read yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as wrong:
        raise OSError(errno.EINVAL, str(wrong)) from wrong
    try:
        parts: list[bytes] = []
        while sum(map(len, parts)) <= most_bytes:
            if not select.select([descriptor], [], [], WAIT_SECONDS)[0]:
                raise OSError(errno.EAGAIN, f"nothing to read within {WAIT_SECONDS:g} s")
            part = os.read(descriptor, most_bytes + 1)
            if not part:
                return b"".join(parts)
            parts.append(part)
    finally:
        os.close(descriptor)
    raise OSError(errno.EFBIG, f"longer than {most_bytes} bytes")
