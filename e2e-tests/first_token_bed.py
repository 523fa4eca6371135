"""The example proxy that hands first tokens on, in front of a test's pair."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bed import Bed
from conftest import ROOT
from server_process import Server, free_port, start_all


def first_token_proxy(name: str, pair: Bed) -> Iterator[Server]:
    """The body of a fixture: the proxy runs until the generator is closed."""
    port = free_port()
    command = [
        *(sys.executable, str(ROOT / "examples" / "first_token_proxy.py"), "--port", str(port)),
        *("--prefiller", pair.prefiller.server.url, "--decoder", pair.decoder.server.url),
    ]
    made = Server(name, command, port, pair.folder)
    try:
        start_all([made], print)
        yield made
    finally:
        made.stop()
