"""One line for each check, and an exit status that says the truth."""

from __future__ import annotations

import re
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIMIT_SECONDS = 90
PASSED, FAILED, SKIPPED, NOT_SHOWN = "passed", "failed", "skipped", "not shown"


class NotShown(Exception):
    """The check cannot be made here; the message says why."""


class Skipped(Exception):
    """What the check is about is not there to be checked; the message says what is missing."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the main thread after that time, so that a check that hangs costs the others nothing."""

    def over(*_: object) -> None:
        raise TimeoutError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Report:
    """Prints as it goes. One thread."""

    def __init__(self, say: Callable[[str], None] = print, only: str = "") -> None:
        """`only`: a regular expression; checks in whose names it is not found are left out."""
        self.counts: Counter[str] = Counter()
        self._say = say
        self._only = re.compile(only)

    def check(self, name: str, run: Callable[[], str], limit_seconds: int = LIMIT_SECONDS) -> None:
        """`run` returns what was seen, and raises where that is wrong; it ends when its time is over."""
        if not self._only.search(name):
            return
        begun = time.monotonic()
        try:
            with limited(limit_seconds):
                outcome, detail = PASSED, run()
        except NotShown as reason:
            outcome, detail = NOT_SHOWN, str(reason)
        except Skipped as reason:
            outcome, detail = SKIPPED, str(reason)
        except Exception as fault:  # a check that breaks is one that failed
            frames = traceback.extract_tb(fault.__traceback__)
            outcome, detail = FAILED, f"{type(fault).__name__}: {fault} ({frames[-1].filename}:{frames[-1].lineno})"
        self.counts[outcome] += 1
        self._say(f"{outcome:9} {name}: {' '.join(detail.split())} [{time.monotonic() - begun:.1f} s]")

    def end(self, *, needs_gpu: bool) -> int:
        """The exit status: 1 when a check failed, or could not be made although it has to be."""
        kinds = (PASSED, FAILED, SKIPPED, NOT_SHOWN)
        self._say(", ".join(f"{self.counts[kind]} {kind}" for kind in kinds))
        if self.counts[NOT_SHOWN]:
            self._say("what was not shown is not known to work")
        return int(self.counts[FAILED] > 0 or self.counts[PASSED] == 0 or (needs_gpu and self.counts[NOT_SHOWN] > 0))
