"""The calls of SGLang's own scheduler, as e2e-tests/sglang_pair wrote them down, and the orders they may come in.

A pass is planned, then computed; what it computed is sent at some time after that, and what SGLang's cache had may be
sent at any time. All orders that keep to this are made of one recording, not only the one that was seen: which of them
comes depends on overlap, on early sends and on the release of SGLang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "recorded"
LINE = re.compile(r"(?P<side>prefill|decode) (?P<call>\w+) ?(?P<text>.*)")


@dataclass(frozen=True)
class Plan:
    """Before a forward pass: the backend is told what it will compute."""

    end_token: int
    prompt_tokens: int
    leaves: bool
    """Whether it was taken, so that layers leave meanwhile."""


@dataclass(frozen=True)
class Computed:
    """A forward pass is over."""

    first_token: int
    end_token: int


@dataclass(frozen=True)
class Sent:
    """SGLang gives the next pages."""

    page_count: int
    behind_event: bool


@dataclass(frozen=True)
class Other:
    """Any other call."""

    name: str


Call = Plan | Computed | Sent | Other


@dataclass(frozen=True)
class Recorded:
    """One request."""

    title: str
    page_count: int
    """Of the prompt."""
    prefill: Sequence[Call]
    """From its page count on."""
    decode: Sequence[Call]

    def served(self) -> bool:
        return not any(call in (Other("abort"), Other("failure_exception")) for call in (*self.prefill, *self.decode))

    def order(self) -> list[Call]:
        """As it was seen."""
        return [call for call in self.prefill if not isinstance(call, Other)]

    def passes(self) -> list[Call]:
        return [call for call in self.prefill if isinstance(call, Plan | Computed)]

    def sends(self) -> list[Sent]:
        return [call for call in self.prefill if isinstance(call, Sent)]

    def leaves_to_send(self) -> bool:
        return Other("leave_to_send") in self.prefill

    def orders(self, page_tokens: int) -> Iterator[list[Call]]:
        """Every order of its plans, passes and sends in which no page is sent before it is computed."""
        passes, sends = self.passes(), self.sends()
        computed_by = [self._pass_before(passes, sends, at, page_tokens) for at in range(len(sends))]
        yield from _merged(passes, sends, computed_by, 0, 0)

    def _pass_before(self, passes: Sequence[Call], sends: Sequence[Sent], at: int, page_tokens: int) -> int:
        """How many of `passes` must have come before that send: all that compute one of its pages or an earlier one."""
        end_page = sum(send.page_count for send in sends[: at + 1])
        computing = [
            number
            for number, call in enumerate(passes)
            if isinstance(call, Computed) and call.first_token < end_page * page_tokens
        ]
        return max(computing, default=-1) + 1


def _merged(
    passes: Sequence[Call], sends: Sequence[Sent], computed_by: Sequence[int], passed: int, sent: int
) -> Iterator[list[Call]]:
    if passed == len(passes) and sent == len(sends):
        yield []
    if sent < len(sends) and computed_by[sent] <= passed:
        yield from ([sends[sent], *rest] for rest in _merged(passes, sends, computed_by, passed, sent + 1))
    if passed < len(passes):
        yield from ([passes[passed], *rest] for rest in _merged(passes, sends, computed_by, passed + 1, sent))


AGAIN = ", again"


def recordings(name: str) -> dict[str, Recorded]:
    """Those of one file, by title; a room that was asked for again is two requests."""
    found = {}
    for section in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("\n\n"):
        head, *lines = section.strip().splitlines()
        for number, request in enumerate(_requests(lines)):
            title = head.strip("[]") + AGAIN * number
            found[title] = Recorded(title, *request)
    return found


def _requests(lines: Sequence[str]) -> list[tuple[int, list[Call], list[Call]]]:
    """Page count, and the calls of both sides, of each request; it begins with what is new."""
    sides: dict[str, list[list[Call]]] = {"prefill": [], "decode": []}
    page_counts = []
    for line in lines:
        parts = LINE.fullmatch(line)
        assert parts, f"not a recorded call: {line!r}"
        side, name, text = parts["side"], parts["call"], parts["text"]
        if name == "new":
            sides[side].append([])
        if (side, name) == ("prefill", "init"):
            page_counts.append(int(text))
        sides[side][-1].append(_call(name, text))
    return list(zip(page_counts, sides["prefill"], sides["decode"], strict=True))


def _call(name: str, text: str) -> Call:
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    match name:
        case "plan":
            return Plan(numbers[0], numbers[1], text.endswith("leaves"))
        case "computed":
            return Computed(numbers[0], numbers[1])
        case "send":
            return Sent(numbers[0], text.endswith("event"))
        case _:
            return Other(f"{name} {text}".rstrip() if name == "poll" else name)
