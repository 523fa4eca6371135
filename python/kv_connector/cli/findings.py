"""The doctor's findings, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]

_WHAT_WIDTH = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about this machine, with a remedy if it is a problem."""

    level: Level
    what: str
    value: str
    remedy: str = ""
    """Empty if nothing is wrong, or if the value is a sentence that names the remedy itself."""

    def __str__(self) -> str:
        remedy = f"  {self.remedy}" if self.remedy else ""
        return f"{self.level:4}  {self.what:{_WHAT_WIDTH}}  {self.value}{remedy}"


def ok(what: str, value: str) -> Finding:
    """A finding without a problem."""
    return Finding("ok", what, value)


def warn(what: str, value: str, remedy: str = "") -> Finding:
    """A finding that works but could be better."""
    return Finding("warn", what, value, remedy)


def fail(what: str, value: str, remedy: str = "") -> Finding:
    """A finding with which an engine would not start or would move no KV."""
    return Finding("fail", what, value, remedy)
