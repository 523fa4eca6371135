"""SGLang servers that take weights, and clients whose answers have to be whole of one version."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kv_connector.weights.routes import SGLANG_LOADER
from make_model import cached_model
from plain_sglang import sglang_answers
from prompts import cache_home, random_prompt
from server_process import Server, complete, free_port, wait_until, words_of
from sglang_servers import EngineOptions, engine
from warm_sglang import WarmSglang
from weights_bed import NEW, OLD, PATIENT, PROMPTS, SEND_LIMIT_SECONDS, Served
from workload import ANSWER_TOKENS

ASKED: Final = tuple(random_prompt(40 + 7 * seed, 4300 + seed) for seed in range(8))
"""What clients ask the whole time."""
TAKES_WEIGHTS: Final = ("--custom-weight-loader", SGLANG_LOADER)

Answers = Mapping[str, list[str]]


@dataclass(frozen=True)
class SglangServed(Served):
    """A single SGLang server."""

    def version(self) -> str:
        """As SGLang has it."""
        return str(json.loads(self.server.get("/model_info"))["weight_version"])

    def begins_session(self) -> Mapping[str, Any]:
        """SGLang's own session of updates: only one may be open, and this call says whether one was."""
        begun = self.server.post("/begin_weight_update", {"selector": "target"})
        self.server.post("/end_weight_update", {})
        return begun


def sglang_serving(name: str, folder: Path, kind: type[Server] = WarmSglang, **changed: Any) -> SglangServed:
    """A server of the old model, which is not started yet."""
    old, new = (cached_model(cache_home(), shape) for shape in (OLD, NEW))
    port = free_port()
    environment = {**PATIENT, "KV_MESSENGER_WEIGHTS_METRICS_PORT": str(port), **changed.pop("environment", {})}
    arguments = (*TAKES_WEIGHTS, *changed.pop("arguments", ()))
    options = EngineOptions(old, environment=environment, arguments=arguments, **changed)
    return SglangServed(engine(name, options, folder, kind=kind), port, old, new)


def answers_by_sglang(model: Path, folder: Path) -> Answers:
    """A plain server's of a checkpoint."""
    prompts = [*PROMPTS, *ASKED]
    answers = sglang_answers(model, prompts, ANSWER_TOKENS, folder, lambda line: print(line, flush=True))
    return dict(zip(prompts, answers, strict=True))


def old_and_new(served: SglangServed, folder: Path) -> tuple[Answers, Answers]:
    """Those of plain servers of both checkpoints, which differ at each prompt."""
    old, new = (answers_by_sglang(model, folder) for model in (served.old, served.new))
    assert all(old[prompt] != new[prompt] for prompt in old)
    return old, new


class Clients:
    """Each asks its prompt again and again."""

    def __init__(self, server: Server, prompts: Sequence[str] = ASKED) -> None:
        self._server = server
        self._ends = False
        self._lock = threading.Lock()
        self.answered: list[tuple[str, list[str]]] = []
        self.faults: list[Exception] = []
        self._threads = [threading.Thread(target=self._ask, args=(prompt,), daemon=True) for prompt in prompts]
        for thread in self._threads:
            thread.start()

    def _ask(self, prompt: str) -> None:
        while not self._ends:
            try:
                words = words_of(complete(self._server, prompt, ANSWER_TOKENS))
            except Exception as fault:
                self.faults.append(fault)
                return
            with self._lock:
                self.answered.append((prompt, words))

    def go_on(self, count: int = 8) -> None:
        """Returns when so many more answers have come."""
        until = len(self.answered) + count
        wait_until(lambda: bool(self.faults) or len(self.answered) >= until, SEND_LIMIT_SECONDS, f"answer {until}")
        assert not self.faults

    def end(self) -> list[tuple[str, list[str]]]:
        self._ends = True
        for thread in self._threads:
            thread.join(SEND_LIMIT_SECONDS)
        assert not self.faults
        return self.answered


@contextmanager
def asking(server: Server, prompts: Sequence[str] = ASKED) -> Iterator[Clients]:
    clients = Clients(server, prompts)
    try:
        yield clients
    finally:
        clients._ends = True


def of_versions(answered: Sequence[tuple[str, list[str]]], *versions: Answers) -> list[int]:
    """Which version each answer is whole of, by number; -1: of none."""
    return [
        next((number for number, answers in enumerate(versions) if answers[prompt] == words), -1)
        for prompt, words in answered
    ]
