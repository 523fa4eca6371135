"""A checkpoint's folder is sent into a server that goes on answering: what it answers before, meanwhile, afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from conftest import asked
from faults import STEP_LIMIT_SECONDS, Gate
from make_model import TinyModel, cached_model
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, greedy_completion, metric_sum, start_all, wait_until, words_of
from servers import EngineOptions, engine
from warm_starts import WarmServer
from workload import ANSWER_TOKENS

OLD, NEW, OTHER = TinyModel(), TinyModel(seed=21), TinyModel(layer_count=3)
PROMPTS: Final = tuple(random_prompt(length, seed) for seed, length in enumerate((3, 130, 300), start=4000))
STREAMED: Final = random_prompt(20, 4100)
STREAM_TOKENS: Final = 1900
THIRD: Final = 3
"""Writes of 4 MB that leave of the model's 9 or so."""
BACKEND: Final = ("--weight-transfer-config", json.dumps({"backend": "kv_messenger"}))
SEND_LIMIT_SECONDS: Final = 300


class Stream:
    """A client that always reads an answer's tokens as they come; when one ends, it asks again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.answers: list[list[str]] = []
        self.fault: Exception | None = None
        self._ends = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while not self._ends:
                self._read_one()
        except Exception as fault:
            self.fault = fault

    def _read_one(self) -> None:
        words: list[str] = []
        self.answers.append(words)
        body = greedy_completion(STREAMED, STREAM_TOKENS) | {"stream": True}
        request = urllib.request.Request(
            f"{self._server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SEND_LIMIT_SECONDS) as answer:
            for line in answer:
                if self._ends:
                    return
                if line.startswith(b"data: {"):
                    words += json.loads(line[6:])["choices"][0]["text"].split()

    def _count(self) -> int:
        return sum(map(len, self.answers))

    def end(self) -> None:
        self._ends = True
        self._thread.join(SEND_LIMIT_SECONDS)
        assert self.fault is None

    def go_on(self, count: int = 10) -> None:
        """Returns when so many more tokens have come."""
        until = self._count() + count
        wait_until(lambda: self._count() >= until, SEND_LIMIT_SECONDS, f"token {until} of the stream")


@dataclass(frozen=True)
class Served:
    server: Server
    metrics_port: int
    old: Path
    new: Path

    def metric(self, name: str, **labels: str) -> float:
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=SEND_LIMIT_SECONDS) as page:
                return metric_sum(page.read().decode(), name, labels)
        except OSError:
            return 0.0  # it has no messenger before its first sender

    def answers(self) -> list[list[str]]:
        return [words_of(complete(self.server, prompt, ANSWER_TOKENS)) for prompt in PROMPTS]

    def paused(self) -> bool:
        return bool(json.loads(self.server.get("/is_paused"))["is_paused"])

    def command(self, folder: Path, *more: str) -> list[str]:
        return [*(sys.executable, "-m", "kv_connector", "weights", "send", str(folder), "--to", self.server.url), *more]

    def send(self, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(folder, *more), capture_output=True, text=True, timeout=SEND_LIMIT_SECONDS, check=False
        )


@pytest.fixture(scope="module", params=[1])
def served(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Served]:
    old, new = (cached_model(cache_home(), shape) for shape in (OLD, NEW))
    port = free_port()
    options = EngineOptions(
        old,
        tp_size=request.param,
        prefix_caching=True,
        environment={"VLLM_SERVER_DEV_MODE": "1", "KV_MESSENGER_WEIGHTS_METRICS_PORT": str(port)},
        arguments=BACKEND,
    )
    server = engine(f"weights-tp{request.param}", options, run_folder, kind=WarmServer)
    with ExitStack() as stack:
        stack.callback(server.stop)
        start_all([server], print)
        yield Served(server, port, old, new)


@contextmanager
def held_sender(served: Served, gate: Gate) -> Iterator[subprocess.Popen[bytes]]:
    """A sender whose first third has left, and which holds the rest."""
    environment = os.environ | {"KV_MESSENGER_JVM_OPTIONS": ",".join(gate.jvm_options)}
    with gate.closed(after=THIRD):
        sender = subprocess.Popen(served.command(served.new), env=environment)
        try:
            wait_until(lambda: served.metric("kv_messenger_windows_open") == 1, SEND_LIMIT_SECONDS, "an open window")
            yield sender
        finally:
            sender.kill()
            sender.wait()


def test_a_checkpoint_is_sent_into_a_server_that_goes_on_answering(served: Served, tmp_path: Path) -> None:
    old, new = answers_of(served.old), answers_of(served.new)
    assert old != new
    assert served.answers() == old
    stream = Stream(served.server)
    stream.go_on()

    with held_sender(served, Gate(tmp_path / "gate")) as sender:
        stream.go_on()
        sender.kill()
        stream.go_on()
    wait_until(
        lambda: served.metric("kv_messenger_weight_updates_ended_total", reason="sender_lost") == 1,
        STEP_LIMIT_SECONDS,
        "the loss of the sender",
    )
    assert served.answers() == old
    assert not served.paused()
    before = list(stream.answers[0])

    sent = served.send(served.new, "--version", "7")
    assert sent.returncode == 0, sent.stderr
    stream.go_on()
    stream.end()
    assert served.answers() == new
    assert not served.paused()
    assert f"{served.server.url}: version 7" in sent.stdout
    assert served.metric("kv_messenger_weights_version") == 7

    again = served.send(served.old)
    assert again.returncode == 0, again.stderr
    assert served.answers() == old
    assert words_of(complete(served.server, STREAMED, len(before))) == before


def test_what_does_not_fit_is_refused_and_changes_nothing(served: Served) -> None:
    first = served.send(served.old)
    assert first.returncode == 0, first.stderr
    answers = served.answers()
    late = served.send(served.new, "--version", "1")
    assert late.returncode == 1
    assert "version is 1, expected one above" in late.stderr
    other = served.send(cached_model(cache_home(), OTHER))
    assert other.returncode == 1
    assert (
        "tensor model.layers.3.input_layernorm.weight is missing, and of shape [512] in the checkpoint" in other.stderr
    )
    assert served.answers() == answers


def answers_of(model: Path) -> Sequence[list[str]]:
    reference = asked(model, list(PROMPTS))
    return [reference.to(prompt) for prompt in PROMPTS]
