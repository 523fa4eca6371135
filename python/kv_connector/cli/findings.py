"""What the doctor has found out, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]

_WHAT_WIDTH = 14


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact of this machine, and what to do about it where it is not good."""

    level: Level
    what: str
    value: str
    remedy: str = ""
    """"" where all is well, and where the value is a sentence that names the remedy itself."""

    def __str__(self) -> str:
        remedy = f"  {self.remedy}" if self.remedy else ""
        return f"{self.level:4}  {self.what:{_WHAT_WIDTH}}  {self.value}{remedy}"


def ok(what: str, value: str) -> Finding:
    """As it should be."""
    return Finding("ok", what, value)


def warn(what: str, value: str, remedy: str = "") -> Finding:
    """Works, and could be better."""
    return Finding("warn", what, value, remedy)


def fail(what: str, value: str, remedy: str = "") -> Finding:
    """An engine would not start, or would move no KV."""
    return Finding("fail", what, value, remedy)
