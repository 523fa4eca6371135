"""Engines in processes of their own, and the router between a prefiller and a decoder."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch_engine.plan import EnginePlan

START_LIMIT_SECONDS = 600.0
ANSWER_LIMIT_SECONDS = 600.0


class EngineEnded(Exception):
    """An engine's process has ended, and has not answered."""


class EngineProcess:
    """An engine and the way to it. Answers are read by a thread of its own; anything may be called from any thread."""

    module = "torch_engine"
    path: tuple[str, ...] = ()
    """Further folders of modules."""
    environment: Mapping[str, str] = {}
    """Further variables."""
    answer_limit_seconds = ANSWER_LIMIT_SECONDS

    def __init__(self, plan: EnginePlan, log: Path) -> None:
        self.plan = plan
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._process = self._launched()
        self._lock = threading.Lock()
        self._awaited: dict[str, Future[dict[str, Any]]] = {}
        self._ready = self._await("ready")
        threading.Thread(target=self._read, daemon=True).start()

    def _launched(self) -> subprocess.Popen[str]:
        folder = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join([folder, *self.path, *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(self.log, "w", encoding="utf-8") as lines:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, self.plan.as_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=lines,
                text=True,
                env={**os.environ, **self.environment, "PYTHONPATH": path},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def where(self) -> tuple[str, int]:
        """Its messenger's address; waits for the start."""
        ready = self._ready.result(START_LIMIT_SECONDS)
        return ready["host"], ready["port"]

    def add(self, request: str, prompt: Sequence[int], answer: int, kv: Any = None) -> Future[dict[str, Any]]:
        ended = self._await(request)
        self._say({"do": "add", "request": request, "prompt": list(prompt), "answer": answer, "kv": kv})
        return ended

    def abort(self, request: str) -> None:
        self._say({"do": "abort", "request": request})

    def rest(self) -> dict[str, Any]:
        """Waits until nothing is left to do; what is held then, and the messenger's figures."""
        answer = self._await("rest")
        self._say({"do": "rest"})
        return dict(answer.result(self.answer_limit_seconds)["rest"])

    def capture(self, count: int) -> Future[dict[str, Any]]:
        """Starts `count` captures of a graph, one behind the other; the engine does nothing else meanwhile."""
        captured = self._await("captured")
        self._say({"do": "capture", "count": count})
        return captured

    def kill(self) -> None:
        """By SIGKILL; what is awaited of it fails."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Its commands end, and so does it."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(START_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise

    def _await(self, name: str) -> Future[dict[str, Any]]:
        with self._lock:
            return self._awaited.setdefault(name, Future())

    def _say(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            name = answer["ended"] if "ended" in answer else next(iter(answer))
            with self._lock:
                awaited = self._awaited.pop(name)
            awaited.set_result(answer)
        with self._lock:
            missed, self._awaited = self._awaited, {}
        for future in missed.values():
            tail = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            future.set_exception(EngineEnded(f"engine {self.plan.name} has ended:\n" + "\n".join(tail)))


@dataclass
class Legs:
    """A request's two ends."""

    name: str
    prefill: Future[dict[str, Any]] | None
    decode: Future[dict[str, Any]]


class Pair:
    """A prefiller and a decoder; sends both legs of a request at once, as routers do."""

    def __init__(self, prefiller: EngineProcess, decoder: EngineProcess, first: int = 0) -> None:
        """`first`: the number of the first request; pairs that share an engine have different ones."""
        self.prefiller = prefiller
        self.decoder = decoder
        self._numbers = itertools.count(first)

    def ask(self, prompt: Sequence[int], answer: int) -> Legs:
        name = f"cmpl-{next(self._numbers)}"
        host, port = self.prefiller.where()
        shared = {"transfer_id": f"transfer-{name}"}
        prefill = self.prefiller.add(
            f"{name}-p", prompt, 1, {"do_remote_decode": True, "do_remote_prefill": False, **shared}
        )
        wanted = {"do_remote_prefill": True, "do_remote_decode": False, "remote_host": host, "remote_port": port}
        return Legs(name, prefill, self.decoder.add(f"{name}-d", prompt, answer, wanted | shared))

    def ask_decoder(self, prompt: Sequence[int], answer: int) -> Legs:
        """One that no prefiller hears of."""
        name = f"cmpl-{next(self._numbers)}"
        return Legs(name, None, self.decoder.add(f"{name}-d", prompt, answer))

    def abort(self, legs: Legs, side: str) -> None:
        (self.prefiller if side == "p" else self.decoder).abort(f"{legs.name}-{side}")


@contextmanager
def started(plan: EnginePlan, logs: Path, *, decoder_on_cpu: bool = False) -> Iterator[Pair]:
    """Both engines by one plan, whose name and role are filled in."""
    producer = replace(plan, name=f"{plan.name}-prefiller", kv_role="kv_producer")
    consumer = replace(plan, name=f"{plan.name}-decoder", kv_role="kv_consumer", held=False)
    if decoder_on_cpu:
        consumer = replace(consumer, device="cpu", graphs=False, kv_in_host_memory=False)
    with (
        EngineProcess(producer, logs / "prefiller.log") as prefiller,
        EngineProcess(consumer, logs / "decoder.log") as decoder,
    ):
        prefiller.where()
        decoder.where()
        yield Pair(prefiller, decoder)
