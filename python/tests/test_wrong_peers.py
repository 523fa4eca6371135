"""What a decoder's log says when its prefiller is not there, or another one: a sentence with the remedy."""

from __future__ import annotations

import json
import re

import pytest
from conftest import RunPython

from kv_connector.runtime import preflight

SCRIPT = """
    import json, socket, threading, time
    from kv_connector import Failed, Messenger, parse_options
    from kv_connector.runtime.commands import Fetch, FetchPages, PrefillerAddress
    from kv_connector.cli.host_pages import HostPages

    SECRET, OTHER = "a" * 20, "b" * 20
    kept = []

    def opened(role, model="one", **more):
        pages = HostPages(model, 4096, 4)
        kept.append(pages)
        said = {"listen_port": 0, "unheard_limit_seconds": 1, "connect_limit_seconds": 60, **more}
        return Messenger.open(parse_options(said, role=role, engine_id=role), pages.geometry(16))

    def answering(answer):
        listener = socket.create_server(("127.0.0.1", 0))
        kept.append(listener)
        def serve():
            while True:
                kept.append(listener.accept()[0])
                kept[-1].sendall(answer)
        threading.Thread(target=serve, daemon=True).start()
        return listener.getsockname()[1]

    def dead_port():
        kept.append(socket.socket())  # bound, so that no other process gets it, and never listened on
        kept[-1].bind(("127.0.0.1", 0))
        return kept[-1].getsockname()[1]

    def fetch(decoder, name, port, host="127.0.0.1"):
        decoder.submit([Fetch(name, name, "", [PrefillerAddress(host, port)], 16, 0, [FetchPages([1])], 60000)])

    prefiller = opened("prefiller", shared_secret=SECRET)
    right = opened("decoder", shared_secret=SECRET)
    hasty = opened("decoder", shared_secret=SECRET, connect_limit_seconds=1)
    patient = opened("decoder", shared_secret=SECRET, unheard_limit_seconds=2)
    other_secret = opened("decoder", shared_secret=OTHER)
    no_secret = opened("decoder")
    other_model = opened("decoder", model="another", shared_secret=SECRET)
    port = prefiller.opened.control_port
    fetch(right, "dead port", dead_port())
    fetch(right, "unknown host", port, "no.such.host.invalid")
    fetch(hasty, "silent port", answering(b""))
    fetch(right, "HTTP server", answering(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n"))
    fetch(right, "one leg", port)
    fetch(patient, "one leg, more patience", port)
    fetch(other_secret, "other secret", port)
    fetch(no_secret, "no secret", port)
    fetch(other_model, "other model", port)
    said, deadline = {}, time.monotonic() + 600
    while len(said) < 9 and time.monotonic() < deadline:
        for messenger in (right, hasty, patient, other_secret, no_secret, other_model):
            said.update({event.request: event.reason for event in messenger.poll() if isinstance(event, Failed)})
        time.sleep(0.02)
    for messenger in (prefiller, right, hasty, patient, other_secret, no_secret, other_model):
        messenger.close()
    print(json.dumps(said))
"""

SENTENCES = {
    "dead port": r"prefiller 127\.0\.0\.1:\d+ cannot be reached: Connection refused; start it, or look at its"
    r" listen_host, listen_port and advertise_host",
    "unknown host": r"prefiller no\.such\.host\.invalid:\d+ cannot be reached: no such host is known .*; start it, or"
    r" look at its listen_host, .*",
    "silent port": r"127\.0\.0\.1:\d+ did not complete the handshake within 1000 ms \(connect_limit_seconds\): look"
    r" whether a messenger is at that address, and what may hold its frames up",
    "HTTP server": r".* expected at most \d+: look whether the port is that of a messenger",
    "one leg": r"no request with transfer id one leg reached the prefiller within 1000 ms \(unheard_limit_seconds\):"
    r" look whether the prefiller's server rejected it, and whether the router sends both legs, with one id",
    "one leg, more patience": r"no request with transfer id .* within 2000 ms \(unheard_limit_seconds\): look .*",
    "other secret": r".*shared_secret differs between prefiller and decoder at .*: set the same value on both sides",
    "no secret": r".*shared_secret differs between prefiller and decoder at .*: set the same value on both sides",
    "other model": r".*the prefiller's model is one, the decoder's is another: start both with the same",
}


@pytest.fixture(scope="module")
def reasons(jar: preflight.Jar, java: preflight.JavaRuntime) -> dict[str, str]:
    """Filled by the first test that asks: all mistakes are made at once, in one process."""
    assert jar.path.exists()
    assert java.launcher.exists()
    return {}


@pytest.mark.parametrize("mistake", list(SENTENCES))
def test_should_say_what_to_do(mistake: str, reasons: dict[str, str], run_python: RunPython) -> None:
    if not reasons:
        reasons.update(json.loads(run_python(SCRIPT).stdout.splitlines()[-1]))
    assert re.fullmatch(SENTENCES[mistake], reasons[mistake]), reasons[mistake]
