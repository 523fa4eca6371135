"""Weights that are sent with `--under-way finish` while vLLM preempts requests: each answer is whole of one version.

The pool has room for few of the answers that are under way, so one of them is preempted for another again and again.
Left out of an ordinary run: `make weight-faults ARGS="-k preempted"`.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from prompts import random_prompt
from server_process import complete, start_all, wait_until, words_of
from weights_bed import SEND_LIMIT_SECONDS, Served, serving

pytestmark = pytest.mark.at_length

PROMPTS: Final = tuple(random_prompt(20 + 7 * seed, 4700 + seed) for seed in range(4))
ANSWER_TOKENS: Final = 300
POOL: Final = ("--max-model-len", "512", "--num-gpu-blocks-override", "18")
PAGE_TOKENS: Final = 32
"""So that the pool is 576 tokens: less than two of the four answers."""
PREEMPTED: Final = "vllm:num_preemptions_total"


class Clients:
    """One for each prompt, which asks it again and again."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.answered: list[tuple[str, tuple[str, ...]]] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(prompt,), daemon=True) for prompt in PROMPTS]
        for thread in self._threads:
            thread.start()

    def _ask(self, prompt: str) -> None:
        while not self._over.is_set():
            self.answered.append((prompt, tuple(words_of(complete(self._served.server, prompt, ANSWER_TOKENS)))))

    def go_on(self, count: int) -> None:
        until = len(self.answered) + count
        wait_until(lambda: len(self.answered) >= until, SEND_LIMIT_SECONDS, f"answer {until}")

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(SEND_LIMIT_SECONDS)


@pytest.fixture(scope="module")
def served(run_folder: Path) -> Iterator[Served]:
    made = serving("weights-preempted", run_folder, page_tokens=PAGE_TOKENS, arguments=POOL)
    with ExitStack() as stack:
        stack.callback(made.server.stop)
        start_all([made.server], print)
        yield made


def test_no_answer_is_of_two_versions_where_requests_are_preempted(served: Served) -> None:
    plain: dict[tuple[str, tuple[str, ...]], str] = {}
    for folder in (served.new, served.old):
        assert served.send(folder).returncode == 0
        for prompt in PROMPTS:
            plain[prompt, tuple(words_of(complete(served.server, prompt, ANSWER_TOKENS)))] = folder.name
    assert len(plain) == 2 * len(PROMPTS)

    before = served.server.metric(PREEMPTED)
    clients = Clients(served)
    for folder in itertools.islice(itertools.cycle((served.new, served.old)), 4):
        clients.go_on(3)
        sent = served.send(folder, "--under-way", "finish")
        assert sent.returncode == 0, sent.stderr
    clients.go_on(3)
    clients.end()
    preempted = served.server.metric(PREEMPTED) - before
    seen = Counter(plain.get(each, "of two versions") for each in clients.answered)
    print(f"{preempted:.0f} preemptions, answers {dict(seen)}")
    assert preempted > len(clients.answered) / 4
    assert seen.keys() == {served.old.name, served.new.name}
