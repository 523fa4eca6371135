"""Standard output and error of a command: closed, full, a pipe without a reader, or in an encoding of few letters."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path


class UnprintedError(Exception):
    """Standard output takes nothing more."""

    def __init__(self, failure: OSError | ValueError) -> None:
        super().__init__(f"standard output cannot be written ({failure}): look at where it is redirected to")
        self.has_no_reader = isinstance(failure, BrokenPipeError)


def prepare() -> None:
    """Opens what the caller has closed, in the order of the numbers, and lets each character be printed somehow."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Writes to standard output; raises UnprintedError."""
    try:
        sys.stdout.write(text)
    except (OSError, ValueError) as failure:
        raise UnprintedError(failure) from failure


def flush() -> None:
    """Raises UnprintedError if what was written cannot be printed."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as failure:
        raise UnprintedError(failure) from failure


def give_up(unprinted: UnprintedError) -> int:
    """Names the reason, unless the reader has just seen enough; returns the exit code."""
    if not unprinted.has_no_reader:
        sys.stderr.write(f"{unprinted}\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)  # the interpreter flushes once more at its end
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 1
