"""Weights into SGLang under faults, on real servers: two ranks, senders that die in each state, requests that last.

Left out of an ordinary run: `make sglang-weights`.
"""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from faults import STEP_LIMIT_SECONDS, Gate
from make_model import cached_model
from prompts import cache_home
from server_process import Server, wait_until
from sglang_weights_bed import (
    Answers,
    SglangServed,
    asking,
    of_versions,
    old_and_new,
    sglang_serving,
)
from test_weights import OTHER
from weights_bed import DIES, PROMPTS, SEND_LIMIT_SECONDS, STREAMED, Stream, held_sender, killed_at

pytest_plugins = ["sglang_fixtures"]
pytestmark = pytest.mark.at_length

VERSIONS: Final = itertools.count(1 << 50)
LASTING_TOKENS: Final = 700
LOADS: Final = "/update_weights_from_tensor"


@pytest.fixture(scope="module", params=[1, 2], ids=["one-rank", "two-ranks"])
def served(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[SglangServed]:
    """Started as users start it."""
    environment = {"KV_MESSENGER_CONNECT_LIMIT_SECONDS": "20"}
    made = sglang_serving(
        f"weights-tp{request.param}", run_folder, kind=Server, tp_size=request.param, environment=environment
    )
    with made.server:
        made.server.wait_healthy()
        yield made


@pytest.fixture(scope="module")
def answers(run_folder: Path, served: SglangServed) -> tuple[Answers, Answers]:
    return old_and_new(served, run_folder)


@pytest.fixture
def old(served: SglangServed, answers: tuple[Answers, Answers]) -> Iterator[list[list[str]]]:
    """The server serves the old weights, and takes an update when the case is over."""
    before, after = ([each[prompt] for prompt in PROMPTS] for each in answers)
    send(served, served.old)
    assert served.answers() == before
    yield before
    assert served.begins_session()["success"], "a session of SGLang's was left open"
    send(served, served.new)
    assert served.answers() == after


def send(served: SglangServed, folder: Path) -> None:
    version = next(VERSIONS)
    sent = served.send(folder, "--version", str(version))
    assert sent.returncode == 0, sent.stderr
    assert served.version() == str(version)


def newest() -> tuple[str, str]:
    return ("--version", str(next(VERSIONS)))


def test_each_answer_is_whole_of_one_version(
    served: SglangServed, old: list[list[str]], answers: tuple[Answers, Answers]
) -> None:
    assert served.answers() == old
    with asking(served.server) as clients:
        for folder in (served.new, served.old, served.new, served.old):
            clients.go_on()
            send(served, folder)
        clients.go_on()
        versions = of_versions(clients.end(), *answers)
    print(f"{len(versions)} answers, {versions.count(0)} of the old version, {versions.count(1)} of the new one")
    assert -1 not in versions
    assert set(versions) == {0, 1}


def test_a_sender_dies_while_it_writes(served: SglangServed, old: list[list[str]], tmp_path: Path) -> None:
    lost = served.ended("sender_lost")
    with held_sender(served, Gate(tmp_path / "gate"), *newest()) as sender:
        assert served.answers() == old
        sender.kill()
    wait_until(lambda: served.ended("sender_lost") > lost, STEP_LIMIT_SECONDS, "the loss of the sender")
    assert served.answers() == old


def test_a_sender_is_stopped_while_it_writes(served: SglangServed, old: list[list[str]], tmp_path: Path) -> None:
    with held_sender(served, Gate(tmp_path / "gate"), *newest()) as sender:
        sender.send_signal(signal.SIGSTOP)
        refused = served.send(served.new, *newest())
        assert refused.returncode == 1
        assert served.answers() == old


@pytest.mark.parametrize("place", ["/init_weights_update_group", LOADS])
def test_a_sender_dies_before_a_route(served: SglangServed, old: list[list[str]], place: str) -> None:
    killed_at(served, place, served.new, *newest())
    assert served.answers() == old


def test_a_sender_dies_behind_the_load(
    served: SglangServed, old: list[list[str]], answers: tuple[Answers, Answers]
) -> None:
    assert served.answers() == old
    version = next(VERSIONS)
    killed_at(served, f"{LOADS} answered", served.new, "--version", str(version))
    assert served.answers() == [answers[1][prompt] for prompt in PROMPTS]
    assert served.version() == str(version)


def test_a_sender_dies_while_its_load_waits_for_an_answer(
    served: SglangServed, old: list[list[str]], answers: tuple[Answers, Answers]
) -> None:
    """What it asked for is done: the server has all it needs. The answer under way is whole of the old version."""
    stream = Stream(served.server, LASTING_TOKENS)
    stream.go_on()
    version = next(VERSIONS)
    command = [sys.executable, "-c", DIES, f"{LOADS} sent", *served.command(served.new, "--version", str(version))[3:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SEND_LIMIT_SECONDS, check=False)
    assert ended.returncode < 0, ended.stderr
    stream.end_with_answer()
    wait_until(lambda: served.version() == str(version), STEP_LIMIT_SECONDS, "the load")
    assert served.answers() == [answers[1][prompt] for prompt in PROMPTS]
    send(served, served.old)
    again = Stream(served.server, LASTING_TOKENS)
    again.end_with_answer()
    assert stream.answers[0] == again.answers[0], STREAMED
    assert len(stream.answers[0]) == LASTING_TOKENS
    assert served.answers() == old


def test_what_does_not_fit_is_refused_and_changes_nothing(served: SglangServed, old: list[list[str]]) -> None:
    late = served.send(served.new, "--version", "1")
    assert late.returncode == 1
    assert "version is 1, expected one above" in late.stderr
    other = served.send(cached_model(cache_home(), OTHER), *newest())
    assert other.returncode == 1
    assert "tensor model.layers.3.input_layernorm.weight is missing" in other.stderr
    frozen = served.send(served.new, "--under-way", "continue", *newest())
    assert frozen.returncode == 1
    assert "expected finish with SGLang" in frozen.stderr
    assert served.answers() == old
