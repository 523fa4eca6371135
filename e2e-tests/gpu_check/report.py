"""One line for each check, and an exit status that says the truth."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

LIMIT_SECONDS = 90
_MARK = "outcome of the check: "
PASSED, FAILED, SKIPPED, NOT_SHOWN, IN_PART = "passed", "failed", "skipped", "not shown", "in part"


class NotShown(Exception):
    """The check cannot be made here; the message says why."""


class Skipped(Exception):
    """What the check is about is not there to be checked; the message says what is missing."""


@dataclass(frozen=True)
class InPart:
    """What a check returns that passed as far as it could be made."""

    seen: str
    not_shown: str

    def __str__(self) -> str:
        return f"{self.seen}; not shown: {self.not_shown}"


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


@dataclass(frozen=True)
class Outcome:
    """How a check ended, and what was seen or what was wrong."""

    kind: str
    detail: str
    seconds: float
    printed: str = ""
    """By the process of a check that failed, before its outcome."""

    def as_line(self) -> str:
        return _MARK + json.dumps(asdict(self))

    @staticmethod
    def from_line(line: str) -> Outcome | None:
        """None: the line is not one of an outcome."""
        return Outcome(**json.loads(line.removeprefix(_MARK))) if line.startswith(_MARK) else None


def outcome_of(run: Callable[[], str | InPart], limit_seconds: int = LIMIT_SECONDS) -> Outcome:
    """`run` returns what was seen, and raises where that is wrong; it ends when its time is over."""
    begun = time.monotonic()
    try:
        with limited(limit_seconds):
            seen = run()
        kind, detail = IN_PART if isinstance(seen, InPart) else PASSED, str(seen)
    except NotShown as reason:
        kind, detail = NOT_SHOWN, str(reason)
    except Skipped as reason:
        kind, detail = SKIPPED, str(reason)
    except Exception as fault:  # a check that breaks is one that failed
        frames = traceback.extract_tb(fault.__traceback__)
        kind, detail = FAILED, f"{type(fault).__name__}: {fault} ({frames[-1].filename}:{frames[-1].lineno})"
    return Outcome(kind, detail, time.monotonic() - begun)


class Report:
    """Prints as it goes. One thread."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.counts: Counter[str] = Counter()
        self.outcomes: dict[str, Outcome] = {}
        """By the names of the checks."""
        self._say = say

    def add(self, name: str, outcome: Outcome) -> None:
        self.counts[outcome.kind] += 1
        self.outcomes[name] = outcome
        if outcome.printed:
            self._say(f"--- {name}:\n{outcome.printed}")
        self._say(f"{outcome.kind:9} {name}: {' '.join(outcome.detail.split())} [{outcome.seconds:.1f} s]")

    def end(self, *, needs_gpu: bool) -> int:
        """The exit status: 1 when a check failed, or could not be made, or not whole, although it has to be."""
        not_shown = self.counts[NOT_SHOWN] + self.counts[IN_PART]
        if not_shown:
            self._say("what was not shown is not known to work")
        kinds = [PASSED, FAILED, NOT_SHOWN, *(kind for kind in (IN_PART, SKIPPED) if self.counts[kind])]
        self._say(", ".join(f"{self.counts[kind]} {kind}" for kind in kinds))
        made = self.counts[PASSED] + self.counts[IN_PART]
        return int(self.counts[FAILED] > 0 or made == 0 or (needs_gpu and not_shown > 0))
