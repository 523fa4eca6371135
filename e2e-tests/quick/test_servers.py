"""The servers' keeper: waits by health, fails early with the log's end, leaves no process behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import is_over
from server_process import START_LIMIT_SECONDS, Server, ServerFailed, free_port, metric_sum, start_all, wait_until

HEALTHY = """
import http.server, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def python_server(name: str, program: str, folder: Path) -> Server:
    port = free_port()
    return Server(name, [sys.executable, "-c", program, str(port)], port, folder)


def test_dying_server_fails_the_start_at_once_with_the_end_of_its_log(tmp_path: Path) -> None:
    server = python_server("dying", "raise SystemExit('no model at this address')", tmp_path)
    begun = time.monotonic()
    with pytest.raises(ServerFailed, match="no model at this address"):
        start_all([server], print)
    assert time.monotonic() - begun < START_LIMIT_SECONDS


def test_silent_server_fails_at_its_limit(tmp_path: Path) -> None:
    with python_server("silent", "import time; print('loading', flush=True); time.sleep(600)", tmp_path) as server:
        wait_until(lambda: "loading" in server.log(), 600, "it runs")
        with pytest.raises(ServerFailed, match="loading"):
            server.wait_healthy(1)


def test_stop_ends_the_whole_process_group(tmp_path: Path) -> None:
    server = python_server("parent", HEALTHY, tmp_path)
    start_all([server], print)
    (child,) = [int(found) for found in re.findall(r"^child (\d+)$", server.log(), re.MULTILINE)]
    server.stop()
    assert not server.alive()
    wait_until(lambda: is_over(child), 600, "the child has ended too")


LEAVING = """
import pathlib, sys, tempfile, time
left = pathlib.Path(tempfile.gettempdir()) / "left-by-the-server"
left.write_text("")
print("left", left, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("end", [Server.stop, Server.kill])
def test_what_a_server_leaves_in_its_temporary_folder_goes_with_it(
    tmp_path: Path, end: Callable[[Server], None]
) -> None:
    server = python_server("leaving", LEAVING, tmp_path)
    server.start()
    left_line = re.compile(r"^left (/.+)$", re.MULTILINE)
    wait_until(lambda: bool(left_line.search(server.log())), 600, "it has left something")
    (left,) = [Path(found) for found in left_line.findall(server.log())]
    assert left.exists()
    end(server)
    assert not left.parent.exists(), "what engines leave there would stay for ever"
    assert left.parent != Path(tempfile.gettempdir())
    assert Path(server.environment["TORCHINDUCTOR_CACHE_DIR"]).parent != left.parent, "each start would compile anew"


def test_metric_is_summed_over_the_samples_that_carry_the_labels() -> None:
    text = '# TYPE a counter\na{x="1",y="2"} 3\na{x="1",y="5"} 4\na{x="2",y="2"} 8\nab{x="1"} 16\na 32\n'
    assert metric_sum(text, "a", {"x": "1"}) == 7
    assert metric_sum(text, "a", {}) == 47


CLEANED_UP = """
import contextlib, sys
from demo_console import say, unwind_on_sigterm

def clean_up():
    print("cleans up", flush=True)
    sys.stdin.readline()
    print("cleaned up", flush=True)

unwind_on_sigterm()
with contextlib.ExitStack() as stack:
    stack.callback(clean_up)
    print("runs", flush=True)
    sys.stdin.read()
"""


def test_second_sigterm_does_not_cut_the_clean_up_short() -> None:
    """`timeout make …` sends two: one to make, which hands it on, and one to the whole group."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CLEANED_UP]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as demo:
        assert demo.stdin is not None
        assert demo.stdout is not None
        for line in (b"runs\n", b"cleans up\n"):
            assert demo.stdout.readline() == line
            demo.terminate()
        demo.stdin.close()
        assert demo.stdout.readline() == b"cleaned up\n"
    assert demo.returncode == 128 + signal.SIGTERM
