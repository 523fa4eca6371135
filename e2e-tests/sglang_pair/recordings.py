"""What SGLang asked of the backend for one request, as text: a title, then a line a call, first the prefiller's.

The lines of a side are in the order of its calls. How the calls of two sides lie to each other is not said: it is
another one in each run. So it is with those of a room that is asked for again: they come behind those of the first leg,
whether a prefiller has seen its end by then or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

SIDES: Final = ("prefill", "decode")
RETRACTED: Final = "retracted in mid-answer"
"""How far the answer was is another one each time, and with it whether the page behind the cached ones has a twin."""
GIVEN_UP_AT_BOTH: Final = "given up at both"
"""Either side may hear of the other's end before it is told of its own."""
Call = Mapping[str, Any]


def calls_of(folder: Path, room: int) -> list[Call]:
    """All that was recorded of a room so far, by any process."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text(encoding="utf-8").splitlines(True)]
    calls = [json.loads(line) for line in lines if line.endswith("\n")]
    return sorted(
        (call for call in calls if call["room"] == room), key=lambda call: (int(call["transfer"]), int(call["at_ns"]))
    )


def draft_rows(folder: Path) -> list[str]:
    """What was seen of the rows of each request that became ready, see plugins/draft_rows.py."""
    return [line.split()[1] for file in folder.glob("*.rows") for line in file.read_text(encoding="utf-8").splitlines()]


def pages_sent(calls: Iterable[Call]) -> int:
    return sum(call["page_count"] for call in calls if call["call"] == "send")


def pages_of(calls: Iterable[Call]) -> int:
    """How many the prefiller has to send; -1 as long as it has not said so."""
    return next((int(call["page_count"]) for call in calls if (call["side"], call["call"]) == ("prefill", "init")), -1)


def section(title: str, calls: Iterable[Call]) -> str:
    calls = list(calls)
    lines = [line_of(call) for side in SIDES for call in calls if call["side"] == side]
    return "\n".join([f"[{title}]", *lines]) + "\n"


def line_of(call: Call) -> str:
    name = call["call"]
    if name == "plan":
        detail = f"{call['end_token']} of {call['prompt_tokens']}, {'leaves' if call['leaves'] else 'waits'}"
    elif name == "computed":
        detail = f"{call['first_token']} to {call['end_token']}"
    elif name == "send":
        detail = f"{call['page_count']}{' behind an event' if call['event'] else ''}"
    else:
        detail = str(call.get("page_count", call.get("state", "")))
    return f"{call['side']} {name} {detail}".rstrip()


def comparable(text: str) -> list[str]:
    """The sections of a recording without what no two runs have in common."""
    sections = [section.strip() for section in text.split("\n\n") if not section.startswith(f"[{GIVEN_UP_AT_BOTH}]")]
    return [without_progress(section) if section.startswith(f"[{RETRACTED}]") else section for section in sections]


def without_progress(section: str) -> str:
    """What does not depend on how many tokens there were."""
    lines = [line for line in section.splitlines() if not re.match(r"prefill (plan|leave_to_send)\b", line)]
    return re.sub(r"\d+", "n", "\n".join(lines))
