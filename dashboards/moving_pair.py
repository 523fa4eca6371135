"""A prefiller's and a decoder's messenger that move pages: ``python dashboards/moving_pair.py``.

It prints the ports of both metrics pages. From the first line on that it reads it goes on until it reads no more, with
prompts in two chunks, and now and then a fetch from where no prefiller is. Meanwhile some fetches wait for prompts that
never come.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from kv_connector import Arrived, Event, Failed, Messenger, Released, parse_options
from kv_connector.cli.host_pages import HostPages
from kv_connector.runtime.commands import Prices, SourcePrice, encode

PAGE_BYTES = 16 << 10
PAGE_TOKENS = 16
PAGE_COUNT = 64
NOWHERE = {"host": "127.0.0.1", "port": 1, "engineId": ""}
PAUSE_SECONDS = 0.02
WAITING = 3
PAGES: list[HostPages] = []
"""They stay where they are for as long as the messengers know them."""
LIMIT_SECONDS = 600.0
WAITS_SECONDS = 3600
"""What never comes is waited for as long as a slow machine needs to look at it."""


@contextlib.contextmanager
def moving() -> Iterator[subprocess.Popen[str]]:
    """The pair in a process of its own, which ends with this."""
    root = Path(__file__).resolve().parents[1] / "python"
    with subprocess.Popen(
        [sys.executable, __file__],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as pair:
        yield pair
        pair.communicate("", timeout=LIMIT_SECONDS)


def metrics_ports(pair: subprocess.Popen[str]) -> list[int]:
    """The prefiller's and the decoder's."""
    assert pair.stdout is not None
    ports = [int(port) for port in pair.stdout.readline().split()]
    assert len(ports) == 2, "no messengers were opened"
    return ports


def go(pair: subprocess.Popen[str]) -> None:
    """From now on KV moves."""
    assert pair.stdin is not None
    pair.stdin.write("go\n")
    pair.stdin.flush()


def messenger(role: Literal["prefiller", "decoder"]) -> Messenger:
    given = {"listen_port": 0, "metrics_peers": 4, "unheard_limit_seconds": WAITS_SECONDS}
    options = parse_options(given, role=role, engine_id=role, environment={})
    PAGES.append(HostPages("moved", PAGE_BYTES, PAGE_COUNT))
    return Messenger.open(options, PAGES[-1].geometry(PAGE_TOKENS))


def until(one: Messenger, request: str, *kinds: type[Event]) -> Event:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        for event in one.poll():
            if isinstance(event, kinds) and getattr(event, "request", "") == request:
                return event
        time.sleep(0.000_2)
    raise TimeoutError(f"{request} has not ended")


def move(prefiller: Messenger, decoder: Messenger, transfer: str) -> None:
    tokens = PAGE_COUNT * PAGE_TOKENS
    prompt = {"request": transfer, "transfer": transfer, "promptDigest": ""}
    prefiller.submit([{"do": "announce"} | prompt])
    ask(decoder, transfer, address_of(prefiller))
    half = PAGE_COUNT // 2
    for first in (0, half):
        chunk = {"promptTokens": tokens, "endToken": (first + half) * PAGE_TOKENS}
        pages = [{"firstPage": first, "pages": list(range(first, first + half))}]
        prefiller.submit([{"do": "computed", "groups": pages} | chunk | prompt])
    prefiller.submit([{"do": "prefillEnded", "request": transfer, "outcome": "finished"}])
    begun_ns = time.monotonic_ns()
    ended = until(decoder, transfer, Arrived, Failed)
    assert isinstance(ended, Arrived), ended
    micros = 1 + (time.monotonic_ns() - begun_ns) // 1000
    counted = {"do": "pullEnded", "outcome": "arrived", "tokens": tokens, "askMicros": micros, "pullMicros": micros}
    price = SourcePrice("127.0.0.1:1", 0, 0, 1, 0, 1, 10**6 * micros // tokens, 1, 2 * tokens, 60_000)
    # as if it had been asked for before, so that the panels of pulls have data
    decoder.submit([counted, encode(Prices([price], 10**6))])
    until(prefiller, transfer, Released)


def address_of(prefiller: Messenger) -> dict[str, object]:
    return {"host": "127.0.0.1", "port": prefiller.opened.control_port, "engineId": ""}


def ask(decoder: Messenger, transfer: str, prefiller: object) -> None:
    fetch = {"do": "fetch", "request": transfer, "transfer": transfer, "prefillers": [prefiller]}
    prompt = {"promptTokens": PAGE_COUNT * PAGE_TOKENS, "firstToken": 0, "limitMillis": 1000 * WAITS_SECONDS}
    decoder.submit([fetch | prompt | {"groups": [{"pages": list(range(PAGE_COUNT))}]}])


def names() -> Iterator[str]:
    """Until there is nothing more to read."""
    number = 0
    while not select.select([sys.stdin], [], [], 0)[0] or sys.stdin.readline():
        number += 1
        yield f"moved-{number}"


def main() -> None:
    prefiller, decoder = messenger("prefiller"), messenger("decoder")
    print(prefiller.opened.metrics_port, decoder.opened.metrics_port, flush=True)
    sys.stdin.readline()
    for number in range(WAITING):
        ask(decoder, f"waits-{number}", address_of(prefiller))
    for number, name in enumerate(names()):
        move(prefiller, decoder, name)
        if number % 10 == 0:
            ask(decoder, f"{name}-nowhere", NOWHERE)
            until(decoder, f"{name}-nowhere", Failed)
        time.sleep(PAUSE_SECONDS)
    decoder.close()
    prefiller.close()


if __name__ == "__main__":
    main()
