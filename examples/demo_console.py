"""What a demo says while it runs, and how it ends when it is told to."""

from __future__ import annotations

import signal
import time
from types import FrameType

STARTED = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - STARTED:5.0f} s] {message}", flush=True)


def unwind_on_sigterm() -> None:
    """SIGTERM ends the program as an exception does: by its ExitStack, which stops the servers."""
    signal.signal(signal.SIGTERM, _stop)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout make` sends two: the second would cut the clean-up short
    raise SystemExit(128 + signal_number)
