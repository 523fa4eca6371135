"""A prefiller and its decoder get other weights while clients ask: each answer is whole of one version.

Left out of an ordinary run: `make weight-pairs`.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from bed import Messenger, decoder, messenger, prefiller, prove, serial, start_messengers, together
from conftest import asked
from make_model import cached_model
from prompts import cache_home, random_prompt
from server_process import wait_until, words_of
from weights_bed import BACKEND, NEW, OLD, SEND_LIMIT_SECONDS
from workload import ANSWER_TOKENS

pytestmark = pytest.mark.at_length

PROMPTS: Final = tuple(random_prompt(40 + 23 * seed, 4400 + seed) for seed in range(8))
VERSIONS: Final = itertools.count(1 << 50)
WAYS: Final = (serial, together)
ONE_BY_ONE: Final = ("--under-way", "finish", "--one-by-one")
BETWEEN: Final = 12
"""Answers that come between two updates."""
CONTINUE_TRIES: Final = 10
"""Until a transfer is under way."""


Answers = Mapping[str, list[str]]


@dataclass
class Clients:
    """Each asks its prompt again and again, by both legs; a request that fails is asked again."""

    source: Messenger
    target: Messenger
    answered: list[tuple[str, list[str] | None]] = field(default_factory=list)
    """Prompts, with their words; None for a request that failed."""
    reasons: Counter[str] = field(default_factory=Counter)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Clients:
        self._threads = [
            threading.Thread(target=self._ask, args=(index, prompt), daemon=True)
            for index, prompt in enumerate(PROMPTS)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _ask(self, index: int, prompt: str) -> None:
        for turn in itertools.count(index):
            if self._over.is_set():
                return
            words: list[str] | None = None
            try:
                words = words_of(WAYS[turn % 2](self.source, self.target, prompt, ANSWER_TOKENS))
            except Exception as failed:
                self.reasons[str(failed)[:400]] += 1
            self.answered.append((prompt, words))

    def count(self) -> int:
        return sum(words is not None for _, words in self.answered)

    def go_on(self) -> None:
        until = self.count() + BETWEEN
        wait_until(lambda: self.count() >= until, SEND_LIMIT_SECONDS, f"answer {until}")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SEND_LIMIT_SECONDS)

    def by_version(self, old: Answers, new: Answers) -> Counter[str]:
        def of(prompt: str, words: list[str] | None) -> str:
            if words is None:
                return "failed"
            return {tuple(new[prompt]): "new", tuple(old[prompt]): "old"}.get(tuple(words), "mixed")

        return Counter(of(prompt, words) for prompt, words in self.answered)


@dataclass(frozen=True)
class Pair:
    source: Messenger
    target: Messenger
    old: Path
    new: Path

    def send(self, folder: Path, *to: Messenger, version: int = 0, options: Sequence[str] = ONE_BY_ONE) -> None:
        sent = self.sent(folder, *to, version=version, options=options)
        assert sent.returncode == 0, sent.stderr

    def sent(
        self, folder: Path, *to: Messenger, version: int = 0, options: Sequence[str] = ONE_BY_ONE
    ) -> subprocess.CompletedProcess[str]:
        targets = [word for each in to for word in ("--to", each.server.url)]
        command = [sys.executable, "-m", "kv_connector", "weights", "send", str(folder), *targets]
        more = ["--version", str(version or next(VERSIONS)), *options]
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=SEND_LIMIT_SECONDS, check=False
        )


@pytest.fixture(scope="module", params=["fail", "recompute"])
def pair(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[Pair]:
    old, new = (cached_model(cache_home(), shape) for shape in (OLD, NEW))
    options: dict[str, Any] = {"environment": {"VLLM_SERVER_DEV_MODE": "1"}, "arguments": BACKEND}
    source = messenger(prefiller(f"source-{request.param}", options=options), old, run_folder)
    target = messenger(
        decoder(f"target-{request.param}", options=options | {"load_failure_policy": request.param}), old, run_folder
    )
    with ExitStack() as stack:
        start_messengers(stack, [source, target])
        prove(source, target)
        yield Pair(source, target, old, new)


@pytest.fixture(scope="module")
def answers(pair: Pair) -> tuple[Answers, Answers]:
    old, new = (asked(model, list(PROMPTS)) for model in (pair.old, pair.new))
    made = tuple({prompt: each.to(prompt) for prompt in PROMPTS} for each in (old, new))
    assert all(made[0][prompt] != made[1][prompt] for prompt in PROMPTS)
    return made[0], made[1]


def test_no_answer_is_of_two_versions(pair: Pair, answers: tuple[Answers, Answers]) -> None:
    with Clients(pair.source, pair.target) as clients:
        clients.go_on()
        for folder in (pair.new, pair.old):
            pair.send(folder, pair.source, pair.target)
            clients.go_on()
        for folder, first, second in (
            (pair.new, pair.source, pair.target),
            (pair.old, pair.target, pair.source),
        ):
            version = next(VERSIONS)
            pair.send(folder, first, version=version)
            clients.go_on()
            pair.send(folder, second, version=version)
            clients.go_on()
        clients.end()
    are_of_one_version_each(clients, answers)
    exchange_again(pair, answers[0])


def test_both_sides_may_load_at_the_same_time(pair: Pair, answers: tuple[Answers, Answers]) -> None:
    """Neither waits for what the other does not begin before it has loaded."""
    with Clients(pair.source, pair.target) as clients:
        clients.go_on()
        for folder in (pair.new, pair.old) * 2:
            began_seconds = time.monotonic()
            pair.send(folder, pair.source, pair.target, options=("--under-way", "finish"))
            print(f"sent in {time.monotonic() - began_seconds:.1f} s")
            clients.go_on()
        clients.end()
    are_of_one_version_each(clients, answers)
    exchange_again(pair, answers[0])


def test_what_refuses_under_traffic_names_the_way_that_does_not(pair: Pair, answers: tuple[Answers, Answers]) -> None:
    """With `continue` a side that has a transfer under way refuses, and the other one may have loaded."""
    with Clients(pair.source, pair.target) as clients:
        clients.go_on()
        refusals = ""
        for _ in range(CONTINUE_TRIES):
            refusals = pair.sent(pair.new, pair.source, pair.target, options=("--under-way", "continue")).stderr
            if refusals:
                break
            clients.go_on()
        print(refusals)
        assert "KV of the weights before is held" in refusals
        assert "send with --under-way finish" in refusals
        pair.send(pair.old, pair.source, pair.target, options=("--under-way", "finish"))
        clients.end()
    print(dict(clients.by_version(*answers)), clients.reasons)
    exchange_again(pair, answers[0])


def test_two_trainers_that_count_alike_have_weights_of_two_names(pair: Pair, answers: tuple[Answers, Answers]) -> None:
    """Each sends to one side, under one number; then the same weights are sent to the other side under another."""
    version = next(VERSIONS)
    pair.send(pair.new, pair.target, version=version)
    pair.send(pair.old, pair.source, version=version)
    arrived = pair.target.metric("kv_messenger_fetches_arrived_total")
    for way, prompt in itertools.product(WAYS, PROMPTS[:2]):
        words = answers[1][prompt]
        with contextlib.suppress(Exception):  # it fails, or is computed by the decoder
            words = words_of(way(pair.source, pair.target, prompt, ANSWER_TOKENS))
        assert words == answers[1][prompt]
    assert pair.target.metric("kv_messenger_fetches_arrived_total") == arrived, "no KV of other weights has come"
    pair.send(pair.new, pair.source)
    exchange_again(pair, answers[1])
    pair.send(pair.old, pair.source, pair.target)
    exchange_again(pair, answers[0])


def are_of_one_version_each(clients: Clients, answers: tuple[Answers, Answers]) -> None:
    seen = clients.by_version(*answers)
    print(dict(seen), clients.reasons)
    assert not seen["mixed"]
    assert seen["old"]
    assert seen["new"]


def exchange_again(pair: Pair, answers: Answers) -> None:
    arrived = pair.target.metric("kv_messenger_fetches_arrived_total")
    for prompt in PROMPTS:
        assert words_of(serial(pair.source, pair.target, prompt, ANSWER_TOKENS)) == answers[prompt]
    assert pair.target.metric("kv_messenger_fetches_arrived_total") > arrived, "KV is exchanged again"
    pair.source.wait_at_rest()
    pair.target.wait_at_rest()
