"""A vLLM server on a second host behind a link of 1 Gb/s, trainers on the first, and clients that always read."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from demo_console import say
from engine_race import limit
from hosts import Host
from make_model import TinyModel, cached_model
from plain_vllm import reference_answers
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, start_all, words_of
from servers import EngineOptions, engine
from warm_starts import WarmServer
from weight_figures import (
    Span,
    Update,
    answer_under_way,
    busy_seconds,
    longest_gap,
    sent_bytes,
    under_way,
    usual_gap,
)
from weights_bed import BACKEND, STREAMED, Served, Stream, of_one_version

HERE = Path(__file__).resolve().parent
LINK_BYTES_A_SECOND: Final = 125e6
SAMPLE_SECONDS: Final = 0.01
TRAINER_LIMIT_SECONDS: Final = 300.0
SETTLED_TOKENS: Final = 30
"""Of each stream, before an update and behind it."""
BESIDE_SECONDS: Final = 1.5
"""Of traffic without an update, before each one."""
STREAM_PROMPT_TOKENS: Final = len(STREAMED.split())
PROMPT_TOKENS: Final = 250
PROMPT_ROUNDS: Final = 5
CHECK_PROMPT: Final = random_prompt(40, 4200)
CHECK_TOKENS: Final = 16
BIG: Final = {"layer_count": 5, "hidden_size": 1024, "head_count": 16, "kv_head_count": 8}
MODELS: Final = (TinyModel(**BIG), TinyModel(**BIG, seed=21))
"""193 MB each, in float32."""


@dataclass(frozen=True)
class Flow:
    kind: str
    """Of weight_trainer.py."""
    transports: tuple[str, ...] = ()
    same_host: bool = False
    """Whether its trainer is on the server's host; otherwise it has the link in between."""
    anew: bool = True
    """Whether answers under way lose their KV, which is computed anew by the new weights."""


FLOWS: Final[Mapping[str, Flow]] = {
    "ours, tcp": Flow("ours", ("tcp",)),
    "broadcast, gloo": Flow("broadcast"),
    "ours, shm": Flow("ours", ("shm",), same_host=True),
    "/dev/shm + reload": Flow("reload", same_host=True, anew=False),
    "/dev/shm + reload, KV anew": Flow("reload_anew", same_host=True),
}
OURS, BROADCAST = list(FLOWS)[:2]


class Trainer:
    """A process that trains nothing and sends one of two checkpoints when it is asked."""

    def __init__(
        self, settings: Mapping[str, Any], prefix: tuple[str, ...], environment: Mapping[str, str], log: Path
    ) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "weight_trainer.py"), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
                env=dict(environment),
            )
        self._log = log

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a trainer has ended: {self._log.read_text(errors='replace')[-3000:]}")
        seen: dict[str, float] = json.loads(line)
        return seen

    def ask(self, line: str) -> dict[str, float]:
        self.write_line(line)
        return self.answer()

    def end(self) -> None:
        self._process.kill()
        self._process.wait(TRAINER_LIMIT_SECONDS)


@dataclass
class LinkMeter:
    """What the near end of a link has sent, as time passes. Sampled by a thread of its own within `running`."""

    interface: str
    samples: list[tuple[float, int]] = field(default_factory=list)

    def bytes_sent(self) -> int:
        return sent_bytes(Path("/proc/net/dev").read_text(encoding="ascii"), self.interface)

    @contextmanager
    def running(self) -> Iterator[LinkMeter]:
        over = threading.Event()
        self.samples = [(time.monotonic(), self.bytes_sent())]

        def sample() -> None:
            while not over.wait(SAMPLE_SECONDS):
                self.samples.append((time.monotonic(), self.bytes_sent()))

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()
            self.samples.append((time.monotonic(), self.bytes_sent()))

    def taken(self) -> int:
        return self.samples[-1][1] - self.samples[0][1]

    def busy_seconds(self) -> float:
        return busy_seconds(self.samples)


@dataclass
class Bed:
    """One server, what it should answer by either checkpoint, and who reads from it."""

    host: Host
    server: Server
    ranks: int
    folder: Path
    models: tuple[Path, Path]
    expected: list[list[str]]
    streamed: list[list[str]]
    """What each checkpoint says to the prompt of the streams."""
    environment: Mapping[str, str]
    streams: list[Stream] = field(default_factory=list)
    token_seconds: float = 0.0
    """For which the server computes one token of a prompt."""

    @property
    def model_bytes(self) -> int:
        """Of the tensors, without the file's header."""
        from kv_connector.weights.checkpoint import Checkpoint

        return int(Checkpoint(self.models[0]).manifest.length_bytes)

    def trainer(self, flow: str) -> Trainer:
        given = FLOWS[flow]
        near = self.host.data.far if given.same_host else self.host.data.near
        settings = {
            "kind": given.kind,
            "transports": given.transports,
            "url": self.server.url,
            "folders": list(map(str, self.models)),
            "near": near,
            "far": self.host.data.far,
            "port": free_port(),
            "ranks": self.ranks,
            "memory": f"/dev/shm/kv-messenger-race-{os.getpid()}/{given.kind}",
        }
        prefix = self.host.prefix if given.same_host else ()
        return Trainer(settings, prefix, self.environment, self.folder / f"trainer-{given.kind}.log")

    def read(self, count: int, tokens: int) -> None:
        self.streams = [Stream(self.server, tokens) for _ in range(count)]
        self.settle()

    def settle(self) -> None:
        for stream in self.streams:
            stream.go_on(SETTLED_TOKENS)

    def end_reading(self) -> None:
        for stream in self.streams:
            stream.end()
        self.streams = []

    def came(self) -> list[list[float]]:
        return [list(stream.came_seconds) for stream in self.streams]

    def loaded_seconds(self) -> float:
        return max(map(float, self.server.post("/collective_rpc", {"method": "race_loaded"})["results"]))

    def time_prompts(self) -> float:
        """Sets `token_seconds`, by prompts that it computes while nothing else is asked of it."""
        taken = []
        for seed in range(PROMPT_ROUNDS):
            begun = time.monotonic()
            complete(self.server, random_prompt(PROMPT_TOKENS, 4300 + seed), 1)
            taken.append(time.monotonic() - begun)
        self.token_seconds = statistics.median(taken) / PROMPT_TOKENS
        return self.token_seconds

    def anew_seconds(self, at: float) -> float:
        """For the tokens that are under way then, with their prompts."""
        answers = [under_way(stream.came_seconds, stream.begun_at, at) for stream in self.streams]
        return self.token_seconds * sum(STREAM_PROMPT_TOKENS + count for count in answers)

    def words(self) -> list[str]:
        return words_of(complete(self.server, CHECK_PROMPT, CHECK_TOKENS))

    def whole_answers(self, span: Span, before: list[str]) -> bool:
        """Of what was under way then, beside what the checkpoint `before` says. The server serves another one now."""
        served = Served(self.server, 0, *self.models)
        answers: list[list[str]] = []
        for stream in self.streams:
            first, last = (answer_under_way(stream.came_seconds, stream.begun_at, at) for at in (span.begin, span.end))
            answers += map(list, stream.answers[first : last + 1])
        return all(of_one_version(answer, before, served, STREAMED) for answer in answers)

    def serves(self, number: int) -> bool:
        return self.words() == self.expected[number]

    def update(self, trainer: Trainer, flow: str, count: int, number: int, kvperf_rate: float) -> Update:
        """One update, with what the streams saw of it."""
        self.settle()
        self.loaded_seconds()
        since = time.monotonic()
        time.sleep(BESIDE_SECONDS)  # what comes meanwhile is what an update is compared with
        beside = Span(since, time.monotonic())
        with LinkMeter(self.host.data.interface).running() as meter:
            seen = trainer.ask(f"send {number}")
        self.settle()
        span = Span(seen["begun"], seen["ended"])
        loaded = seen.get("landed", span.begin)
        recent = [[at for at in times if at > since - BESIDE_SECONDS] for times in self.came()]
        return Update(
            flow=flow,
            number=count,
            longest_gap=longest_gap(recent, span),
            longest_before=longest_gap(recent, beside),
            usual_gap=usual_gap(recent, span),
            load=self.loaded_seconds(),
            anew=self.anew_seconds(loaded) if FLOWS[flow].anew else 0.0,
            whole=span.seconds,
            landed=seen["landed"] - seen.get("staged", seen["begun"]) if "landed" in seen else None,
            link_bytes=meter.taken(),
            link_seconds=meter.busy_seconds(),
            kvperf_rate=kvperf_rate,
            right=self.serves(number),
            whole_answers=self.whole_answers(Span(loaded, span.end), self.streamed[1 - number]),
        )


def started(host: Host, ranks: int, folder: Path, stack: ExitStack, answer_tokens: int) -> Bed:
    """With the server up, which serves the first checkpoint. Answers to the streams have as many tokens."""
    models = [cached_model(cache_home(), shape) for shape in MODELS]
    expected = [reference_answers(model, [CHECK_PROMPT], CHECK_TOKENS, say)[0] for model in models]
    streamed = [reference_answers(model, [STREAMED], answer_tokens, say)[0] for model in models]
    if expected[0] == expected[1]:
        raise SystemExit("race-weights: both checkpoints give the same answer, so that neither could be told")
    limit(host, LINK_BYTES_A_SECOND)
    secret = folder / "secret"
    folder.mkdir(parents=True, exist_ok=True)
    secret.touch(0o600)
    secret.write_text(os.urandom(16).hex(), encoding="ascii")
    shared = {"KV_MESSENGER_WEIGHTS_SECRET_FILE": str(secret)}
    server = far_server(host, ranks, folder, models[0], shared)
    stack.callback(server.stop)
    start_all([server], say)
    server.post("/collective_rpc", {"method": "race_stopwatch"})
    bed = Bed(host, server, ranks, folder, (models[0], models[1]), expected, streamed, {**os.environ, **shared})
    if not bed.serves(0):
        raise SystemExit(f"race-weights: the server answers {bed.words()}, a plain vLLM {expected[0]}")
    return bed


def far_server(host: Host, ranks: int, folder: Path, model: Path, shared: Mapping[str, str]) -> Server:
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",
        "KV_MESSENGER_LISTEN_HOST": host.data.far,
        "PYTHONPATH": str(HERE),
        **shared,
    }
    arguments = (*BACKEND, "--worker-extension-cls", "broadcast_extension.BroadcastWeights")
    options = EngineOptions(model, tp_size=ranks, environment=environment, arguments=arguments)
    server = engine(f"server-of-{ranks}", options, folder, kind=WarmServer)
    server.command[server.command.index("--host") + 1] = host.management.far
    server.command[:0] = host.prefix
    server.url = f"http://{host.management.far}:{server.port}"
    return server


def waited(condition: Callable[[], bool], limit_seconds: float) -> bool:
    """Polls often; False after the limit."""
    until = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(SAMPLE_SECONDS)
    return True
