"""Weights under faults, on real servers: senders that stop and die in each state, servers that do, requests under way.

Left out of an ordinary run: `make weight-faults`. Each case begins with a server that serves, and ends with an update
of it that succeeds.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from conftest import asked
from faults import STEP_LIMIT_SECONDS, Gate
from processes import kill, stopped
from prompts import random_prompt
from server_process import Server, complete, wait_until, words_of
from vllm_0_33 import environment_of_0_33
from weights_bed import (
    PROMPTS,
    SEND_LIMIT_SECONDS,
    Served,
    Stream,
    held_sender,
    killed_at,
    of_one_version,
    serving,
)

pytestmark = pytest.mark.at_length

VERSIONS: Final = itertools.count(1 << 50)
"""Each newer than the one before, and than any time in milliseconds."""
CONNECT_LIMIT_SECONDS: Final = 20.0
CLIENTS: Final = 8
UNDER_WAY_TOKENS: Final = 150


@pytest.fixture(scope="module")
def served(run_folder: Path) -> Iterator[Served]:
    environment = {"KV_MESSENGER_CONNECT_LIMIT_SECONDS": str(CONNECT_LIMIT_SECONDS)}
    made = serving("weights", run_folder, environment=environment)
    with made.server:
        made.server.wait_healthy()
        yield made


@pytest.fixture(scope="module")
def answers(served: Served) -> dict[Path, list[list[str]]]:
    """Of each model, by a plain server of it."""
    found = {}
    for model in (served.old, served.new):
        reference = asked(model, list(PROMPTS))
        found[model] = [reference.to(prompt) for prompt in PROMPTS]
    assert found[served.old] != found[served.new]
    return found


@pytest.fixture
def old(served: Served, answers: dict[Path, list[list[str]]]) -> Iterator[list[list[str]]]:
    """The server serves the old weights, and takes an update when the case is over."""
    send(served, served.old)
    assert served.answers() == answers[served.old]
    yield answers[served.old]
    assert not served.paused()
    send(served, served.new)
    assert served.answers() == answers[served.new]


def send(served: Served, folder: Path, *more: str) -> None:
    version = next(VERSIONS)
    sent = served.send(folder, "--version", str(version), *more)
    assert sent.returncode == 0, sent.stderr
    assert served.version() == str(version)


def newest() -> tuple[str, str]:
    return ("--version", str(next(VERSIONS)))


@pytest.mark.parametrize("under_way", ["continue", "finish"])
def test_answers_are_of_the_same_version_or_go_on_by_the_next(
    served: Served, old: list[list[str]], under_way: str
) -> None:
    """Clients ask the whole time, so that answers are under way when the weights are loaded."""
    assert served.answers() == old
    prompts = [random_prompt(40 + 7 * seed, 4200 + seed) for seed in range(CLIENTS)]
    before = [words_of(complete(served.server, prompt, UNDER_WAY_TOKENS)) for prompt in prompts]
    over = threading.Event()
    with ThreadPoolExecutor(CLIENTS) as pool:
        asked_by = [pool.submit(ask_until, over, served.server, prompt) for prompt in prompts]
        try:
            send(served, served.new, "--under-way", under_way)
        finally:
            over.set()
        given = [each.result(SEND_LIMIT_SECONDS) for each in asked_by]
    new = [words_of(complete(served.server, prompt, UNDER_WAY_TOKENS)) for prompt in prompts]
    assert all(left != right for left, right in zip(before, new, strict=True))
    across = [(at, answer) for at in range(CLIENTS) for answer in given[at] if answer not in (before[at], new[at])]
    print(f"{under_way}: {sum(map(len, given))} answers, {len(across)} begun by the old version and ended by the new")
    assert all(given[at][0] == before[at] and len(given[at]) > 1 for at in range(CLIENTS))
    if under_way == "finish":
        assert across == []
        assert all(new[at] in given[at] for at in range(CLIENTS))
    else:
        assert across
        assert all(of_one_version(answer, before[at], served, prompts[at]) for at, answer in across)


def ask_until(over: threading.Event, server: Server, prompt: str) -> list[list[str]]:
    """What is answered until then, and once more."""
    answers: list[list[str]] = []
    while not over.is_set():
        answers.append(words_of(complete(server, prompt, UNDER_WAY_TOKENS)))
    return [*answers, words_of(complete(server, prompt, UNDER_WAY_TOKENS))]


def test_a_sender_that_is_stopped_over_shm_keeps_the_landing(
    served: Served, old: list[list[str]], tmp_path: Path
) -> None:
    stream = Stream(served.server)
    with held_sender(served, Gate(tmp_path / "gate"), *newest(), KV_MESSENGER_TRANSPORTS="shm") as sender:
        lost = served.ended("sender_lost")
        os.kill(sender.pid, signal.SIGSTOP)
        stream.go_on()
        wait_until(lambda: served.ended("sender_lost") > lost, STEP_LIMIT_SECONDS, "the loss of the sender")
        refused = served.send(served.new, *newest())
        assert refused.returncode == 1
        assert "which has lost its session and not ended: end that process, and send again" in refused.stderr
        assert served.answers() == old
        stream.go_on()
    stream.end()


def test_a_sender_that_is_stopped_over_tcp_gives_the_landing_up(
    served: Served, old: list[list[str]], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    with held_sender(served, gate, *newest(), KV_MESSENGER_TRANSPORTS="tcp") as sender:
        lost = served.ended("sender_lost")
        os.kill(sender.pid, signal.SIGSTOP)
        wait_until(lambda: served.ended("sender_lost") > lost, STEP_LIMIT_SECONDS, "the loss of the sender")
        assert served.answers() == old
        send(served, served.old)
        gate.open()
        os.kill(sender.pid, signal.SIGCONT)
        assert sender.wait(SEND_LIMIT_SECONDS) == 1
        assert served.answers() == old


@pytest.mark.parametrize("place", ["/start_weight_update", "/update_weights"])
def test_a_sender_that_dies_before_the_load_changes_nothing(served: Served, old: list[list[str]], place: str) -> None:
    """All has landed; with the second, vLLM's update is open."""
    stream = Stream(served.server)
    stream.go_on()
    killed_at(served, place, served.new, *newest())
    stream.go_on()
    assert served.answers() == old
    stream.end()


def test_a_sender_that_dies_behind_the_load_leaves_a_server_of_the_new_weights(
    served: Served, old: list[list[str]], answers: dict[Path, list[list[str]]]
) -> None:
    assert served.answers() == old
    arguments = newest()
    killed_at(served, "/update_weights answered", served.new, *arguments)
    assert served.answers() == answers[served.new]
    assert served.version() == arguments[1]
    again = served.send(served.new, *arguments)
    assert again.returncode == 1
    assert f"version is {arguments[1]}, expected one above {arguments[1]}" in again.stderr


def test_a_sender_of_the_same_version_takes_the_place_of_one_that_died(
    served: Served, old: list[list[str]], answers: dict[Path, list[list[str]]]
) -> None:
    arguments = newest()
    killed_at(served, "/update_weights", served.old, *arguments)
    assert served.answers() == old
    again = served.send(served.new, *arguments)
    assert again.returncode == 0, again.stderr
    assert served.answers() == answers[served.new]


def test_of_two_senders_at_once_one_is_refused(
    served: Served, old: list[list[str]], answers: dict[Path, list[list[str]]], tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    with held_sender(served, gate, *newest()) as first:
        second = served.send(served.old, *newest())
        assert second.returncode == 1
        assert "is on its way into this server: send again when it has ended" in second.stderr
        assert served.answers() == old
        gate.open()
        first.wait(SEND_LIMIT_SECONDS)
    at_once = [
        subprocess.Popen(served.command(folder, *newest()), stderr=subprocess.PIPE, text=True)
        for folder in (served.old, served.new, served.old)
    ]
    ends = [each.communicate(timeout=SEND_LIMIT_SECONDS)[1] for each in at_once]
    statuses = [each.returncode for each in at_once]
    assert 0 in statuses, ends
    assert served.answers() in answers.values()


def test_a_server_that_is_stopped_or_dies_leaves_the_others(
    served: Served, old: list[list[str]], answers: dict[Path, list[list[str]]], run_folder: Path, tmp_path: Path
) -> None:
    second = serving("weights-second", run_folder)
    gate = Gate(tmp_path / "gate")
    to_second = ("--to", second.server.url)
    with second.server:
        second.server.wait_healthy()
        assert served.answers() == old
        with stopped(second.server.pid):
            unheard = served.send(served.old, *newest(), *to_second)
            assert unheard.returncode == 1
            assert f"{second.server.url}: it did not dial this sender within" in unheard.stderr
            assert f"{served.server.url}: version" in unheard.stdout
        for end in ("stopped", "killed"):
            variables = os.environ | {"KV_MESSENGER_JVM_OPTIONS": ",".join(gate.jvm_options)}
            with gate.closed(after=5), ExitStack() as stack:
                command = served.command(served.new, *newest(), *to_second)
                sender = subprocess.Popen(
                    command, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
                wait_until(
                    lambda: second.metric("kv_messenger_windows_open") == 1, SEND_LIMIT_SECONDS, "an open window"
                )
                if end == "stopped":
                    stack.enter_context(stopped(second.server.pid))
                else:
                    kill(second.server.pid)
                gate.open()
                output, complaints = sender.communicate(timeout=SEND_LIMIT_SECONDS)
            assert sender.returncode == 1
            assert f"{second.server.url}: " in complaints
            assert f"{served.server.url}: version" in output, complaints
            assert served.answers() == answers[served.new]
            if end == "stopped":
                assert second.answers() == old


def test_a_server_of_vllm_0_33_takes_weights(
    answers: dict[Path, list[list[str]]], run_folder: Path, tmp_path: Path
) -> None:
    """Its Python, above the CPU kernels of the installed release: no wheel of 0.33 for CPUs exists."""
    made = serving("weights-0-33", run_folder, kind=Server, environment=environment_of_0_33(tmp_path / "overlay"))
    with made.server:
        made.server.wait_healthy()
        assert "0.33" in made.server.get("/version")
        assert made.answers() == answers[made.old]
        stream = Stream(made.server)
        stream.go_on()
        killed_at(made, "/update_weights", made.new, *newest())
        assert made.answers() == answers[made.old]
        for folder, under_way in ((made.new, "continue"), (made.old, "finish")):
            stream.go_on()
            send(made, folder, "--under-way", under_way)
            assert made.answers() == answers[folder]
        stream.end()
