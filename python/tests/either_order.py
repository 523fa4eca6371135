"""The pairs of events of docs/protocol.md that may come in either order, for the halves of each engine's connector."""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


@dataclass(frozen=True)
class Pair:
    one: str
    other: str
    matters: bool
    """Whether what becomes of the transfer depends on the order."""

    def __str__(self) -> str:
        return f"{self.one} and {self.other}"


def table() -> dict[str, tuple[set[str], set[str]]]:
    """By event: those with which its order is fixed, and those with which it matters."""
    text = PAGE.read_text().split("<!-- either-order -->\n")[1].split("<!-- /either-order -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    return {row[0]: (_names(row[2]), _names(row[3])) for row in rows}


def _names(cell: str) -> set[str]:
    return {part.split(" (")[0] for part in cell.split(", ") if part}


def pairs(unplayed: Container[str] = (), never_together: Container[frozenset[str]] = ()) -> list[Pair]:
    """All pairs whose order is free, without the events and the pairs that an engine has not."""
    events = table()
    free = [(one, other) for one, other in itertools.combinations(events, 2) if other not in events[one][0]]
    return [
        Pair(one, other, other in events[one][1])
        for one, other in free
        if one not in unplayed and other not in unplayed and frozenset({one, other}) not in never_together
    ]


@dataclass(frozen=True)
class Legs:
    """A request's two legs in an engine's events, and which of them have to come before or behind others."""

    prefill: Sequence[str]
    decode: Sequence[str]
    before: Mapping[str, Sequence[str]]
    after: Mapping[str, Sequence[str]]

    def story(self, rest: str, first: str, second: str, *, seconds_leg_first: bool) -> list[str]:
        """The events before and behind the two, as ``EitherOrderTest.play`` orders them.

        ``rest``: when a leg that neither belongs to happens: before, after or never.
        """
        ahead, behind = (second, first) if seconds_leg_first else (first, second)
        untouched: list[str] = []
        if not {first, second} & set(self.prefill):
            untouched += ["ANNOUNCED", "BEGUN", "ENDED"]
        if not {first, second} & set(self.decode):
            untouched += ["GRANTED"]
        events = list(untouched) if rest == "before" else []
        events += [*self.before.get(ahead, ()), *self.before.get(behind, ()), first, second]
        events += [*self.after.get(ahead, ()), *self.after.get(behind, ())]
        return events + (untouched if rest == "after" else [])
