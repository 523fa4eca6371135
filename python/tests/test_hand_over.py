"""An engine that is drained hands over what its cache holds: two real messengers, and an engine's API that is not."""

from __future__ import annotations

import pytest
from conftest import RunPython
from test_messenger import PAIR

PULL = (
    PAIR
    + """
import queue, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from kv_connector import Offered
from kv_connector.cli import idle
from kv_connector.runtime.commands import Ask, Offer

carriers = queue.Queue()

class Api(BaseHTTPRequestHandler):
    def do_POST(self):
        carriers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["kv_transfer_params"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass

api = HTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=api.serve_forever, daemon=True).start()
source, target = memory(), memory()
limits = {"offer_limit_seconds": 600, "silence_limit_seconds": 600}
p = open_one("both", source, engine_api_url=f"http://127.0.0.1:{api.server_port}", **limits)
d = open_one("both", target, **limits)
p_page = f"127.0.0.1:{p.opened.metrics_port}"
looks, skipped_seconds, ends = queue.Queue(), [0.0], []
idle.LOOK_SECONDS = 0.01
idle.time = SimpleNamespace(monotonic=lambda: time.monotonic() + skipped_seconds[0], sleep=time.sleep)
looked_at = idle.read
idle.read = lambda page: looks.put(page) or looked_at(page)
drain = threading.Thread(target=lambda: ends.append(idle.drain([p_page], 7200, print, HAND_OVER_SECONDS)))

def wait_for_looks():
    while not looks.empty():
        looks.get()
    for _ in range(idle.QUIET_LOOKS + 2):  # one may be under way, and those after it have seen what holds now
        looks.get(timeout=600)
    assert drain.is_alive(), ends

def at(place):
    if place == DRAINED_BEFORE:
        drain.start()
        wait_for_looks()
        assert ask("GET", f"http://{p_page}/ready", limit_seconds=600).status == 503

at("the question")
named = [PrefillerAddress(p.opened.control_host, p.opened.control_port, "")]
d.submit([Ask("a", "t", "d" * 32, named, list(range(32)), "", 0, 600_000)])
carrier = carriers.get(timeout=600)
at("the offer")
p.submit([Offer("o", carrier["asked_by_transfer"], carrier["asked_digest"], True, 32, [ChunkPages(0, [1, 2])], "")])
assert await_event(d, Offered) == Offered("a", 32, "")
at("the grant")
for layer in range(len(LAYERS)):
    for index in (1, 2):
        source[page(source, layer, index)] = bytes([10 * layer + index]) * PAGE_BYTES
d.submit([fetch(p, prompt_digest="d" * 32, prefillers=named, prompt_tokens=32)])
assert await_event(d, Arrived, Failed) == Arrived("d", 2)
assert await_event(p, Released) == Released("o")
for layer in range(len(LAYERS)):
    for sent, received in ((1, 6), (2, 3)):
        assert target[page(target, layer, received)] == bytes([10 * layer + sent]) * PAGE_BYTES, (layer, sent)
if HAND_OVER_SECONDS:
    wait_for_looks()
    skipped_seconds[0] = HAND_OVER_SECONDS
drain.join(600)
assert ends == [0]
assert p.leak_check().clean and d.leak_check().clean
p.close()
d.close()
"""
)


@pytest.mark.parametrize("drained_before", ["the question", "the offer", "the grant"])
def test_should_hand_over_whenever_it_is_drained(run_python: RunPython, drained_before: str) -> None:
    """The command goes on until no engine has pulled for the time that it is given."""
    run_python(f"DRAINED_BEFORE, HAND_OVER_SECONDS = {drained_before!r}, 3600.0\n{PULL}")


def test_should_wait_for_an_offer_that_is_open(run_python: RunPython) -> None:
    """Without the option as well: no engine is to end while another one may read its pages."""
    run_python(f"DRAINED_BEFORE, HAND_OVER_SECONDS = 'the grant', 0.0\n{PULL}")
