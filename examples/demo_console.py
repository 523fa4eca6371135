"""The console output of demos, and their orderly end on SIGTERM."""

from __future__ import annotations

import signal
import time
from types import FrameType

STARTED = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.0f} s] {message}", flush=True)


def unwind_on_sigterm() -> None:
    """Makes SIGTERM raise SystemExit, so that the program's ExitStack stops the servers."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout make` sends two: the second would cut the clean-up short
    raise SystemExit(128 + signal_number)
