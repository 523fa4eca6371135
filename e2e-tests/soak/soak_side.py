"""One messenger of the soak: a prefiller that keeps prompts ready, or a decoder that fetches them at a rate.

A process of its own. It takes a JSON object on a line of standard input and answers with one on standard output.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from typing import Any, Protocol

from kv_connector.cli.host_pages import HostPages
from kv_connector.configuration.options import Options, parse_options
from kv_connector.runtime.commands import (
    Announce,
    ChunkPages,
    Computed,
    Fetch,
    FetchPages,
    PrefillEnded,
    PrefillerAddress,
)
from kv_connector.runtime.facade import Arrived, Event, Failed, Granted, Log, Messenger, Released, Stopped

PAGE_BYTES = 64 << 10
PAGE_TOKENS = 16
PAGES_PER_PROMPT = 8
SLOTS = 64
"""Prompts of one decoder that are ready or under way: one more request has to wait."""
DIGEST = "50ac"
"""Names the prompt, as engines do: without it a grant is refused that comes before the last one's prefill has ended."""
POLL_SECONDS = 0.001
FETCH_LIMIT_MILLIS = 30_000
OPENED = "opened"


class Side(Protocol):
    """What either role does between two looks at standard input."""

    messenger: Messenger

    def take(self, command: dict[str, Any]) -> dict[str, Any]: ...

    def work(self) -> None: ...


def options(role: str, transport: str) -> Options:
    given = {
        "transports": [transport],
        "aot_cache": False,
        "listen_port": 0,
        "timelines": "off",
        "grant_wait_seconds": 60.0,
        "unheard_limit_seconds": 60.0,
    }
    return parse_options(given, role=role, engine_id=f"soak-{role}-{random.randrange(1 << 30)}")


def name_of(decoder: int, slot: int) -> str:
    return f"soak-{decoder}-{slot}"


class Prefiller:
    """A prompt for each slot of each decoder, announced and computed; begun again when it was sent."""

    def __init__(self, transport: str, decoders: int) -> None:
        names = [name_of(decoder, slot) for decoder in range(decoders) for slot in range(SLOTS)]
        self._pages = HostPages("soak", PAGE_BYTES, PAGES_PER_PROMPT * SLOTS)
        self._pages.view[:] = random.Random(1).randbytes(len(self._pages.view))
        self.messenger = Messenger.open(options("prefiller", transport), self._pages.geometry(PAGE_TOKENS))
        self._begun = 0
        self._slots: dict[str, tuple[str, int]] = {}
        self._ended: set[str] = set()
        self.sent = 0
        for name in names:
            self._begin(name, int(name.rpartition("-")[2]))

    def _begin(self, name: str, slot: int) -> None:
        self._begun += 1
        request = f"{name}-{self._begun}"
        self._slots[request] = (name, slot)
        tokens = PAGES_PER_PROMPT * PAGE_TOKENS
        pages = list(range(slot * PAGES_PER_PROMPT, (slot + 1) * PAGES_PER_PROMPT))
        computed = Computed(request, name, DIGEST, tokens, tokens, [ChunkPages(0, pages)])
        self.messenger.submit([Announce(request, name, DIGEST), computed])

    def work(self) -> None:
        for event in self.messenger.poll():
            self._hear(event)

    def _hear(self, event: Event) -> None:
        match event:
            case Granted() | Stopped() if event.request not in self._ended:
                self._ended.add(event.request)
                self.messenger.submit([PrefillEnded(event.request, "finished")])
            case Released(request):
                self._ended.discard(request)
                self.sent += 1
                self._begin(*self._slots.pop(request))
            case Log(level, message) if level != "info":
                print(f"prefiller: {message}", file=sys.stderr)

    def take(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"sent": self.sent, "command": command["do"]}


class Decoder:
    """Fetches at random moments, at a rate on average; a moment without a free slot is late, and counted."""

    def __init__(self, transport: str, number: int, prefiller: dict[str, Any]) -> None:
        self._pages = HostPages("soak", PAGE_BYTES, PAGES_PER_PROMPT * SLOTS)
        self.messenger = Messenger.open(options("decoder", transport), self._pages.geometry(PAGE_TOKENS))
        self._number = number
        self._prefiller = PrefillerAddress(**prefiller)
        self._random = random.Random(number)
        self._free = list(range(SLOTS))
        self._asked: dict[str, tuple[int, float]] = {}
        self._count = 0
        self._taken: list[float] = []
        self._failed: list[str] = []

    def work(self) -> None:
        for event in self.messenger.poll():
            match event:
                case Arrived(request):
                    slot, due = self._asked.pop(request)
                    self._taken.append(time.monotonic() - due)
                    self._free.append(slot)
                case Failed(request, reason):
                    slot, _ = self._asked.pop(request)
                    self._failed.append(reason)
                    self._free.append(slot)
                case Log(level, message) if level != "info":
                    print(f"decoder: {message}", file=sys.stderr)

    def take(self, command: dict[str, Any]) -> dict[str, Any]:
        """Offers so many requests a second for so long, and waits for those that are under way."""
        rate, seconds = float(command["rate"]), float(command["seconds"])
        self._taken.clear()
        self._failed.clear()
        began = time.monotonic()
        due = began + self._random.expovariate(rate)
        offered = 0
        while due < began + seconds:
            self.work()
            while self._free and due <= time.monotonic() and due < began + seconds:
                self._fetch(due)
                offered += 1
                due += self._random.expovariate(rate)
            time.sleep(POLL_SECONDS)
            if time.monotonic() > began + 2 * seconds:
                break
        while self._asked:
            self.work()
            time.sleep(POLL_SECONDS)
        return {
            "offered": offered,
            "seconds": time.monotonic() - began,
            "failed": len(self._failed),
            "reasons": sorted(set(self._failed))[:3],
            "taken": sorted(self._taken),
        }

    def _fetch(self, due: float) -> None:
        slot = self._free.pop(0)
        self._count += 1
        request = f"ask-{self._count}"
        self._asked[request] = (slot, due)
        pages = list(range(slot * PAGES_PER_PROMPT, (slot + 1) * PAGES_PER_PROMPT))
        self.messenger.submit(
            [
                Fetch(
                    request=request,
                    transfer=name_of(self._number, slot),
                    prompt_digest=DIGEST,
                    prefillers=[self._prefiller],
                    prompt_tokens=PAGES_PER_PROMPT * PAGE_TOKENS,
                    first_token=0,
                    groups=[FetchPages(pages)],
                    limit_millis=FETCH_LIMIT_MILLIS,
                )
            ]
        )


def serve(side: Side) -> None:
    """Until standard input ends; then what is held is told."""
    while True:
        side.work()
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if not readable:
            continue
        line = sys.stdin.readline()
        if not line:
            break
        command = json.loads(line)
        if command["do"] == "check":
            check = side.messenger.leak_check()
            say({"clean": check.clean, "held": dict(check.held)})
        else:
            say(side.take(command))
    side.messenger.close()


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    if asked["role"] == "prefiller":
        side: Side = Prefiller(asked["transport"], asked["decoders"])
    else:
        side = Decoder(asked["transport"], asked["number"], asked["prefiller"])
    opened = side.messenger.opened
    say({"do": OPENED, "host": opened.control_host, "port": opened.control_port})
    serve(side)


if __name__ == "__main__":
    main()
