"""Servers that are forked with their imports done: as `python -m` has them, they end with the run that started them,
and a launcher that dies is heard of."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import warm_launcher
import warm_starts
from hosts import lack_of_privilege, second_host
from server_process import ServerFailed, free_port, start_all, wait_until
from warm_starts import ForkedProcess, WarmLauncher, WarmServer

HOOKS = "sglang.srt.plugins.hook_registry"
HEAVY = "import os, tempfile\nIMPORTED_BY = os.getpid()\ntempfile.gettempdir()\n"
SERVER = """
import http.server, json, multiprocessing, os, signal, sys, tempfile
import heavy

def spawned(say):
    if "--fails" in sys.argv:
        os.kill(os.getppid(), signal.SIGQUIT)
        signal.pause()
    say.send([os.getpid(), heavy.IMPORTED_BY, os.environ["SAID"], multiprocessing.parent_process().pid])

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

if __name__ == "__main__":
    os.environ["SAID"] += " and by the server"
    hear, say = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=spawned, args=(say,))
    child.start()
    found = {"pid": os.getpid(), "imported_by": heavy.IMPORTED_BY, "child": hear.recv(), "group": os.getpgrp()}
    found["scratch"] = tempfile.gettempdir()
    child.join()
    print(json.dumps({**found, "status": child.exitcode}), flush=True)
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""
NUMPY = """
import os

class random:
    state = "as it was imported"

    @staticmethod
    def seed():
        random.state = os.urandom(8).hex()
"""
DRAWS = """
import json, multiprocessing, random, sys, tempfile, time, uuid

def drawn():
    file = tempfile.NamedTemporaryFile()
    return {
        "random": random.random(), "sample": random.sample(range(1 << 40), 3),
        "numpy": sys.modules["numpy"].random.state,
        "uuid1": str(uuid.uuid1()), "uuid4": str(uuid.uuid4()), "file": file.name, "loaded": LOADED_NS,
    }

def spawned(say):
    say.send(drawn())

LOADED_NS = time.perf_counter_ns()
if __name__ == "__main__":
    hear, say = multiprocessing.get_context("spawn").Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=spawned, args=(say,))
    child.start()
    print(json.dumps([drawn(), hear.recv()]), flush=True)
    child.join()
"""
RUN = """
import pathlib, sys, test_warm_starts, warm_starts
folder = pathlib.Path(sys.argv[1])
server = test_warm_starts.warm(warm_starts.WarmLauncher(["heavy"], lambda: {"PYTHONPATH": str(folder)}), folder)
test_warm_starts.start_all([server], lambda said: None)
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[WarmLauncher]:
    (tmp_path / "heavy.py").write_text(HEAVY)
    (tmp_path / "served.py").write_text(SERVER)
    made = WarmLauncher(["heavy"], lambda: {"PYTHONPATH": str(tmp_path)})
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a run in the background of a shell has it
    yield made
    signal.signal(signal.SIGQUIT, before)
    made.stop()


def warm(launcher: WarmLauncher, folder: Path) -> WarmServer:
    port = free_port()
    server = WarmServer("warm", [sys.executable, "-m", "served", str(port)], port, folder, {"SAID": "by the test"})
    server.launcher = launcher
    return server


def test_server_and_what_it_spawns_have_the_imports_and_the_environment(launcher: WarmLauncher, tmp_path: Path) -> None:
    server = warm(launcher, tmp_path)
    start_all([server], print)
    scratch = server.environment["TMPDIR"]
    server.stop()
    printed = json.loads(next(line for line in server.log().splitlines() if line.startswith("{")))
    assert printed["scratch"] == scratch
    child, imported_by, environment, parent = printed["child"]
    assert printed["pid"] == printed["group"] == server.pid == parent
    assert printed["imported_by"] == imported_by == launcher.pid
    assert child not in (server.pid, launcher.pid)
    assert environment == "by the test and by the server"
    assert printed["status"] == 0


def test_twenty_pairs_at_once_share_no_drawn_value(tmp_path: Path) -> None:
    """Ports, seeds and file names that engines draw: two servers that draw the same port cannot both bind it."""
    (tmp_path / "numpy.py").write_text(NUMPY)
    (tmp_path / "draws.py").write_text(DRAWS)
    launcher = WarmLauncher(["random", "numpy", "tempfile", "uuid"], lambda: {"PYTHONPATH": str(tmp_path)})
    servers = [WarmServer(f"draws-{n}", [sys.executable, "-m", "draws"], 1, tmp_path, {}) for n in range(40)]
    try:
        for server in servers:
            server.launcher = launcher
            server.start()
        assert [server.wait_ended() for server in servers] == [0] * len(servers), servers[0].log()
    finally:
        launcher.stop()
    logs = [server.log().splitlines() for server in servers]
    drawn = [values for log in logs for values in json.loads(next(line for line in log if line.startswith("[")))]
    for what in drawn[0]:
        assert len({str(values[what]) for values in drawn}) == 2 * len(servers), f"two processes share {what}"


def test_server_runs_in_the_network_that_it_was_started_in(launcher: WarmLauncher, tmp_path: Path) -> None:
    lack = lack_of_privilege()
    if lack is not None:
        pytest.skip(lack)
    with second_host() as host:
        server = warm(launcher, tmp_path)
        server.command[:0] = host.prefix
        server.start()
        try:
            wait_until(lambda: '"status": 0' in server.log() or not server.alive(), 600, "it serves")
            assert os.readlink(f"/proc/{server.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            assert not may_connect(server.port), "it listens on the other network's loopback"
        finally:
            server.stop()


def may_connect(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_end_of_a_server_is_seen_with_its_status(launcher: WarmLauncher, tmp_path: Path) -> None:
    server = warm(launcher, tmp_path)
    start_all([server], print)
    assert server.alive()
    server.kill()
    assert server.wait_ended() == -signal.SIGKILL


def test_what_a_server_spawned_reports_a_failure_to_it_by_a_signal(launcher: WarmLauncher, tmp_path: Path) -> None:
    """SGLang's schedulers do, to their parent as the system knows it."""
    server = warm(launcher, tmp_path)
    server.command.append("--fails")
    with pytest.raises(ServerFailed, match="ended before it was healthy"):
        start_all([server], print)
    assert server.wait_ended() == -signal.SIGQUIT
    server.stop()  # what it has spawned lives on, in its group


def test_server_that_cannot_start_fails_with_the_end_of_its_log(launcher: WarmLauncher, tmp_path: Path) -> None:
    server = warm(launcher, tmp_path)
    server.command[3] = "no port"
    with pytest.raises(ServerFailed, match="invalid literal for int"):
        start_all([server], print)
    server.stop()


def test_launcher_that_dies_fails_what_it_started_and_what_it_should_start(
    launcher: WarmLauncher, tmp_path: Path
) -> None:
    server = warm(launcher, tmp_path)
    start_all([server], print)
    try:
        os.kill(launcher.pid, signal.SIGKILL)
        with pytest.raises(ServerFailed, match="the launcher has ended"):
            wait_until(lambda: not server.alive(), 600, "its end is heard of")
        with pytest.raises(ServerFailed, match="the launcher has ended"):
            warm(launcher, tmp_path).start()
    finally:
        os.killpg(server.pid, signal.SIGKILL)


def test_servers_end_with_a_run_that_is_killed(launcher: WarmLauncher, tmp_path: Path) -> None:
    """As by SIGKILL, or where a second interrupt ends its clean-up; one that stands still meanwhile ends as well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as run:
        assert run.stdout is not None
        server = int(run.stdout.readline())
        assert len(living(server)) > 1, "with its nursery"
        os.killpg(server, signal.SIGSTOP)
        run.kill()
    ends_by_itself(server)


def test_server_ends_with_a_run_that_never_heard_of_its_id(
    launcher: WarmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread: list[socket.socket] = []
    monkeypatch.setattr(warm_starts, "ForkedProcess", lambda status, log: unread.append(status))
    server = warm(launcher, tmp_path)
    server.start()
    launcher.stop()
    ends_by_itself(ForkedProcess(unread[0], tmp_path).pid)


def ends_by_itself(group: int) -> None:
    try:
        wait_until(lambda: not living(group), 600, "the server and what it has forked end")
    finally:
        if living(group):
            os.killpg(group, signal.SIGKILL)


def living(group: int) -> list[int]:
    """The processes of a group; one that has ended and is not waited for is none."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, its_group = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                found.append(int(stat.parent.name))
    return found


def test_launcher_that_cannot_import_fails_the_first_start(tmp_path: Path) -> None:
    launcher = WarmLauncher(["no_such_module"], dict)
    with pytest.raises(ServerFailed, match="no_such_module"):
        warm(launcher, tmp_path).start()
    launcher.stop()


def test_a_hooked_object_is_replaced_wherever_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in modules that are imported later, and when what replaces it is replaced again."""
    hooks, source, holder, other = (types.ModuleType(name) for name in (HOOKS, "source", "holder", "other"))
    original = lambda: 0  # noqa: E731 - an object that is bound in these modules alone
    for module in (source, holder):
        module.hooked = original  # type: ignore[attr-defined]
    other.hooked = len  # type: ignore[attr-defined]
    hooks._propagate_patch = None  # type: ignore[attr-defined]
    for module in (hooks, source, holder, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    warm_launcher.know_bindings()
    later = types.ModuleType("later")
    later.its_name = original  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "later", later)
    replaced = original
    for wrapped in (lambda: 1, lambda: 2):
        source.hooked = wrapped  # type: ignore[attr-defined]
        assert hooks._propagate_patch(replaced, wrapped, source) == 2
        replaced = wrapped
        assert vars(holder)["hooked"] is vars(later)["its_name"] is wrapped
    assert vars(other)["hooked"] is len
