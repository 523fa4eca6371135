"""Servers that take weights, a client that always reads from one, and senders that stop where a test has them stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from faults import Gate
from make_model import TinyModel, cached_model
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, greedy_completion, metric_sum, wait_until, words_of
from servers import EngineOptions, engine
from warm_starts import WarmServer
from workload import ANSWER_TOKENS

OLD, NEW = TinyModel(), TinyModel(seed=21)
PROMPTS: Final = tuple(random_prompt(length, seed) for seed, length in enumerate((3, 130, 300), start=4000))
STREAMED: Final = random_prompt(20, 4100)
STREAM_TOKENS: Final = 1900
THIRD: Final = 3
"""Writes of 4 MB that leave of the model's 9 or so."""
BACKEND: Final = ("--weight-transfer-config", json.dumps({"backend": "kv_messenger"}))
SEND_LIMIT_SECONDS: Final = 300
PATIENT: Final = {"KV_MESSENGER_CONNECT_LIMIT_SECONDS": "120"}
"""Of servers and senders: on a busy machine a JVM alone may take longer to start than the 30 s that a user waits."""


class Stream:
    """A client that always reads an answer's tokens as they come; when one ends, it asks again."""

    def __init__(self, server: Server, token_count: int = STREAM_TOKENS) -> None:
        self._server = server
        self._token_count = token_count
        self.answers: list[list[str]] = []
        self.came_seconds: list[float] = []
        """When each token came, by the monotonic clock; of tokens that came together, one."""
        self.begun_at: list[int] = []
        """How many tokens had come before each answer."""
        self.fault: Exception | None = None
        self._ends = False
        self._asks_again = True
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._read_one()
            while self._asks_again and not self._ends:
                self._read_one()
        except Exception as fault:
            self.fault = fault

    def _read_one(self) -> None:
        words: list[str] = []
        self.answers.append(words)
        self.begun_at.append(len(self.came_seconds))
        body = greedy_completion(STREAMED, self._token_count) | {"stream": True}
        request = urllib.request.Request(
            f"{self._server.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=SEND_LIMIT_SECONDS) as answer:
            for line in answer:
                if self._ends:
                    return
                if line.startswith(b"data: {"):
                    words += json.loads(line[6:])["choices"][0]["text"].split()
                    self.came_seconds.append(time.monotonic())

    def count(self) -> int:
        return sum(map(len, self.answers))

    def end(self) -> None:
        self._ends = True
        self._thread.join(SEND_LIMIT_SECONDS)
        assert self.fault is None

    def end_with_answer(self) -> None:
        """Ends when the answer under way, or the first one, is over."""
        wait_until(lambda: bool(self.count()), SEND_LIMIT_SECONDS, "the first token")
        self._asks_again = False
        self._thread.join(SEND_LIMIT_SECONDS)
        assert self.fault is None

    def go_on(self, count: int = 10) -> None:
        """Returns when so many more tokens have come."""
        until = self.count() + count
        wait_until(lambda: self.count() >= until, SEND_LIMIT_SECONDS, f"token {until} of the stream")


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

    def status(self) -> str:
        """What a user is shown of it."""
        command = [sys.executable, "-m", "kv_connector", "weights", "status", self.server.url]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SEND_LIMIT_SECONDS).stdout

    def ended(self, reason: str) -> float:
        return self.metric("kv_messenger_weight_updates_ended_total", reason=reason)

    def answers(self) -> list[list[str]]:
        return [words_of(complete(self.server, prompt, ANSWER_TOKENS)) for prompt in PROMPTS]

    def paused(self) -> bool:
        return bool(json.loads(self.server.get("/is_paused"))["is_paused"])

    def version(self) -> str:
        """As vLLM has it."""
        return str(json.loads(self.server.get("/weight_info"))["weight_version"])

    def fails_at(self, what: str, rank: int) -> None:
        """See weights_extension.py."""
        answer = self.server.post("/collective_rpc", {"method": "fail_at_weights", "args": [what, str(rank)]})
        assert what in answer["results"], answer

    def command(self, folder: Path, *more: str) -> list[str]:
        return [*(sys.executable, "-m", "kv_connector", "weights", "send", str(folder), "--to", self.server.url), *more]

    def send(self, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(folder, *more),
            capture_output=True,
            text=True,
            timeout=SEND_LIMIT_SECONDS,
            check=False,
            env=os.environ | PATIENT,
        )


def serving(name: str, folder: Path, kind: type[Server] = WarmServer, **changed: Any) -> Served:
    """A server of the old model, or of `model`, which is not started yet; `sent` is what it gets in its place."""
    old, new = changed.pop("model", None), changed.pop("sent", None)
    old, new = old or cached_model(cache_home(), OLD), new or cached_model(cache_home(), NEW)
    port = free_port()
    environment = {"VLLM_SERVER_DEV_MODE": "1", "KV_MESSENGER_WEIGHTS_METRICS_PORT": str(port)} | PATIENT
    environment |= changed.pop("environment", {})
    arguments = (*BACKEND, *changed.pop("arguments", ()))
    options = EngineOptions(old, prefix_caching=True, environment=environment, arguments=arguments, **changed)
    return Served(engine(name, options, folder, kind=kind), port, old, new)


FAULTS_ARGUMENTS: Final = ("--worker-extension-cls", "weights_extension.WeightFaults")
FAULTS_ENVIRONMENT: Final = {"PYTHONPATH": str(Path(__file__).parent)}


@contextmanager
def held_sender(served: Served, gate: Gate, *more: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A sender whose first third has left, and which holds the rest until the gate is opened."""
    variables = os.environ | PATIENT | {"KV_MESSENGER_JVM_OPTIONS": ",".join(gate.jvm_options)} | environment
    with gate.closed(after=THIRD):
        sender = subprocess.Popen(served.command(served.new, *more), env=variables)
        try:
            wait_until(
                lambda: sender.poll() is not None or served.metric("kv_messenger_windows_open") == 1,
                SEND_LIMIT_SECONDS,
                "an open window",
            )
            assert sender.returncode is None, "the sender has ended: its reason is above"
            yield sender
        finally:
            sender.send_signal(signal.SIGCONT)
            sender.kill()
            sender.wait()


DIES: Final = """
import os, signal, sys, threading
from kv_connector.cli import main
from kv_connector.weights import servers

def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)

asked = servers.Server._ask
def ask(server, method, path, body):
    if path == sys.argv[1]:
        die()
    if path + " sent" == sys.argv[1]:
        threading.Timer(1.0, die).start()
    answer = asked(server, method, path, body)
    if path + " answered" == sys.argv[1]:
        die()
    return answer

servers.Server._ask = ask
sys.exit(main.main(sys.argv[2:]))
"""
"""A sender that is killed before a route is asked, a second after it was sent, or when it has answered."""


def killed_at(served: Served, place: str, folder: Path, *more: str) -> None:
    """`place` is a route, as of DIES."""
    command = [sys.executable, "-c", DIES, place, *served.command(folder, *more)[3:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SEND_LIMIT_SECONDS, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def of_one_version(answer: Sequence[str], old: Sequence[str], served: Served, prompt: str) -> bool:
    """Whether each token is what one version says after the tokens before it: first the old one, then the served."""
    same = next((at for at, (left, right) in enumerate(zip(answer, old, strict=False)) if left != right), len(answer))
    rest = list(answer[same:])
    if not rest:
        return True
    begun = " ".join([prompt, *answer[:same]])
    return words_of(complete(served.server, begun, len(rest))) == rest
