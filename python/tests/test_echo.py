"""A messenger without a KV cache, opened from Python: its subject is in the test kit's jar, not in the wheel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import REPOSITORY, RunPython
from test_messenger import PAIR

ECHO = """
import ctypes, dataclasses, os, pathlib, signal, subprocess, sys, time
from kv_connector import Command, SubjectMessenger, parse_options
from kv_connector.memory import memfd
from kv_connector.runtime import jvm

HALF_BYTES = 1 << 16

@dataclasses.dataclass(frozen=True, slots=True)
class Ask(Command):
    id: int
    host: str
    port: int
    length_bytes: int

class Echo:
    '''What others may ask for is in the first half of its memory; what it asked for comes into the second.'''

    def __init__(self, name, transport, word="marco"):
        options = parse_options(
            {"listen_port": 0, "transports": [transport], "aot_cache": False, "metrics_port": -1},
            role="both", engine_id=name)
        setup, kit = jvm.set_up(options), pathlib.Path(os.environ["TEST_KIT_JAR"])
        jvm.boot_setup(dataclasses.replace(setup, class_path=(*setup.class_path, kit)))
        self.memfd, self.bytes = memfd.map_memfd(2 * HALF_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        self.messenger = SubjectMessenger.open_subject(options, {
            "kind": "echo", "word": word, "address": address, "lengthBytes": 2 * HALF_BYTES, "memfd": self.memfd})
        self.asked = 0

    def fill(self, seed):
        self.bytes[:HALF_BYTES] = bytes((seed + i * 7) % 251 for i in range(HALF_BYTES))

    def ask(self, port, length_bytes=HALF_BYTES):
        self.asked += 1
        self.messenger.submit([Ask(self.asked, "127.0.0.1", port, length_bytes)])

    def end(self):
        limit = time.monotonic() + 600
        while time.monotonic() < limit:
            self.messenger.wait(1)
            for event in self.messenger.poll_raw():
                if event["event"] != "log":
                    assert event["id"] == self.asked, event
                    return event.get("reason", "arrived")
        raise SystemExit(f"no end came: {self.messenger.leak_check()}")

    def fetch(self, port, seed):
        self.ask(port)
        assert (reason := self.end()) == "arrived", reason
        assert self.bytes[HALF_BYTES:] == bytes((seed + i * 7) % 251 for i in range(HALF_BYTES))
"""


@pytest.fixture
def test_kit() -> str:
    jars = sorted((REPOSITORY / "connector-java" / "testkit" / "target").glob("testkit-*.jar"))
    assert len(jars) == 1, f"expected one testkit-*.jar in connector-java/testkit/target, found {jars}: make java"
    return str(jars[0])


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_should_echo_beside_a_kv_cache_in_one_jvm(run_python: RunPython, test_kit: str, transport: str) -> None:
    run_python(
        PAIR
        + ECHO
        + f"""
one, other = Echo("one", {transport!r}), Echo("other", {transport!r})
source, target = memory(), memory()
p, d = open_one("prefiller", source), open_one("decoder", target)
one.fill(1)
other.fill(2)
for _ in range(3):
    one.fetch(other.messenger.opened.control_port, 2)
    other.fetch(one.messenger.opened.control_port, 1)
d.submit([fetch(p)])
p.submit([Computed("p", "t", "", 20, 20, [ChunkPages(0, [1, 2])]), PrefillEnded("p", "finished")])
assert await_event(d, Arrived, Failed) == Arrived("d", 2)

one.ask(p.opened.control_port)
refused = one.end()
assert "'echo'" in refused and "'kv_cache'" in refused and "connect messengers that move the same" in refused, refused
assert "\\n" not in refused
polo = Echo("polo", {transport!r}, word="polo")
one.ask(polo.messenger.opened.control_port)
assert "word is 'marco'" in (refused := one.end()), refused

port = other.messenger.opened.control_port
other.messenger.close()
one.ask(port)
assert one.end() != "arrived"
assert one.messenger.leak_check().clean, one.messenger.leak_check()
assert one.messenger.opened.layer_counter_address == 0
for messenger in (p, d):
    assert messenger.leak_check().clean
for messenger in (one.messenger, polo.messenger, p, d):
    messenger.close()
""",
        TEST_KIT_JAR=test_kit,
    )


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_should_end_an_ask_whose_peer_is_killed(
    run_python: RunPython, test_kit: str, transport: str, tmp_path: Path
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(
        ECHO
        + f"""
own = Echo("peer", {transport!r})
own.fill(9)
print(own.messenger.opened.control_port, flush=True)
own.fetch(int(sys.stdin.readline()), 4)
print("fetched", flush=True)
sys.stdin.read()  # until it is killed
"""
    )
    run_python(
        ECHO
        + f"""
own = Echo("own", {transport!r})
own.fill(4)
peer = subprocess.Popen([sys.executable, {os.fspath(peer)!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
try:
    port = int(peer.stdout.readline())
    own.fetch(port, 9)
    print(own.messenger.opened.control_port, file=peer.stdin, flush=True)
    assert peer.stdout.readline() == "fetched\\n"
    os.kill(peer.pid, signal.SIGSTOP)
    os.waitpid(peer.pid, os.WUNTRACED)  # returns when all of its threads have stopped
    own.ask(port)
    assert not own.messenger.leak_check().clean, "it waits for its answer"
finally:
    peer.kill()
    peer.wait()
assert own.end() != "arrived"
own.ask(port)
assert own.end() != "arrived"
assert own.messenger.leak_check().clean, own.messenger.leak_check()
own.messenger.close()
""",
        TEST_KIT_JAR=test_kit,
    )


def test_should_name_the_subjects_that_can_be_opened(run_python: RunPython) -> None:
    run_python("""
        from kv_connector import MessengerError, SubjectMessenger, parse_options
        options = parse_options({"listen_port": 0, "aot_cache": False}, role="both", engine_id="e")
        try:
            SubjectMessenger.open_subject(options, {"kind": "echo"})
        except MessengerError as refusal:
            assert "open.subject.kind is 'echo', expected one of kv_cache" in str(refusal), refusal
        else:
            raise SystemExit("a subject was opened whose jar is not there")
    """)
