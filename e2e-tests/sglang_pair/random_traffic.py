"""Sends random prompts with repeated beginnings through real SGLang servers; prints how many answers are right.

    make sglang-traffic [ARGS="--requests 300 --seed 1 CASE…"]

Each answer is compared with a single SGLang's. Some requests are given up at a random moment. Afterwards no side may
hold anything. In the case `router`, SGLang's router stands before one prefiller and two decoders, which are killed in
turns; a request may fail there, and none may be answered wrongly. `bench` is SGLang's own benchmark. The exit code is
1 if a case is not as it should be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread, Timer
from typing import Final

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
sys.path.extend(str(ROOT / folder) for folder in FOLDERS)

from demo_console import unwind_on_sigterm  # noqa: E402
from faults import Outcome, attempt  # noqa: E402
from make_model import cached_model  # noqa: E402
from plain_sglang import sglang_answers  # noqa: E402
from prompts import cache_home, random_prompt  # noqa: E402
from role_router import UNREPEATED, Behind, RoleRouter, router  # noqa: E402
from server_process import MODEL_NAME, free_port, greedy_completion  # noqa: E402
from sglang_bed import COMPLETIONS, Ground, Kind, Pair, Side, give_up, start  # noqa: E402
from warm_sglang import LAUNCHER  # noqa: E402

ANSWER_TOKENS: Final = 8
AT_ONCE: Final = 8
PROMPT_TOKENS_MAX: Final = 700
BEGINNINGS: Final = 12
REPEATED_SHARE: Final = 0.15
"""Of the prompts: they are one that was sent before."""
GIVEN_UP_SHARE: Final = 0.08
GIVEN_UP_AFTER_SECONDS: Final = 0.6
KILL_EVERY_SECONDS: Final = 20.0
UNASKED_LIMIT: Final = {"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20"}
"""How long a prefiller waits for a decoder to ask: the router waits for that leg although the decoder's has failed."""


def chunks(tokens: int) -> tuple[str, ...]:
    """-1: prompts are not cut."""
    return ("--chunked-prefill-size", str(tokens))


NO_CACHE: Final = ("--disable-radix-cache",)
DECODER_CACHE: Final = "--disaggregation-decode-enable-radix-cache"


@dataclass(frozen=True)
class Case:
    name: str
    page_tokens: int
    arguments: tuple[str, ...]
    """Of both sides."""
    decoder_arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def kind(self, more: tuple[str, ...] = ()) -> Kind:
        arguments = (*self.arguments, *more)
        return Kind(page_tokens=self.page_tokens, overlap=True, arguments=arguments, environment=self.environment)


CASES: Final = (
    Case("page-1", 1, chunks(64)),
    Case("page-1-uncut", 1, (*chunks(-1), *NO_CACHE)),
    Case("page-16", 16, chunks(64)),
    Case("page-16-uncut", 16, (*chunks(-1), *NO_CACHE)),
    Case("page-64", 64, (*chunks(64), *NO_CACHE)),
    Case("page-64-uncut", 64, chunks(-1)),
    Case("decoder-cache", 16, chunks(64), (DECODER_CACHE,)),
)
BENCH: Final = "bench"
ROUTER: Final = Case("router", 16, chunks(64), environment=UNASKED_LIMIT)


def drawn_prompts(count: int, seed: int) -> list[str]:
    """Beginnings of random lengths, each cut anywhere and followed by words of its own, or a whole prompt again."""
    draw = random.Random(seed)
    beginnings = [random_prompt(draw.randint(1, PROMPT_TOKENS_MAX), 7000 + index) for index in range(BEGINNINGS)]
    prompts: list[str] = []
    while len(prompts) < count:
        if prompts and draw.random() < REPEATED_SHARE:
            prompts.append(draw.choice(prompts))
            continue
        beginning = draw.choice(beginnings).split()
        kept = beginning[: draw.randint(0, len(beginning))]
        own = random_prompt(draw.randint(1, PROMPT_TOKENS_MAX), 8000 + len(prompts)).split()
        prompts.append(" ".join((kept + own)[: draw.randint(1, PROMPT_TOKENS_MAX)]))
    return prompts


@dataclass
class Seen:
    """What clients have seen. Any thread."""

    expected: dict[str, list[str]]
    counted: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    details: Counter[str] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    def add(self, prompt: str, outcome: Outcome, ended_early: str) -> None:
        """`ended_early` names the requests that have no answer."""
        with self.lock:
            if outcome.words is None:
                self.counted[ended_early] += 1
                if ended_early == "failed":
                    self.details[outcome.detail[:160]] += 1
            elif outcome.words == self.expected[prompt]:
                self.counted["right"] += 1
            else:
                self.wrong.append(f"{len(prompt.split())} tokens: {outcome.words}, alone {self.expected[prompt]}")

    def report(self, name: str, more: str = "") -> None:
        figures = ", ".join(f"{count} {what}" for what, count in sorted(self.counted.items()))
        print(f"{name}: {figures}, {len(self.wrong)} wrong{more}", flush=True)
        for line in [*self.wrong[:5], *(f"{count} x {text}" for text, count in self.details.most_common(3))]:
            print(f"   {line}", flush=True)


def through_pair(case: Case, ground: Ground, prompts: list[str], seed: int, seen: Seen) -> bool:
    draw = random.Random(seed)
    moments = [draw.uniform(0, GIVEN_UP_AFTER_SECONDS) if draw.random() < GIVEN_UP_SHARE else None for _ in prompts]
    with ExitStack() as stack:
        pair = ground.started_sides(stack, case.kind(), case.kind(case.decoder_arguments), case.name)

        def ask(prompt: str, moment: float | None) -> None:
            name = f"traffic-{uuid.uuid4()}"
            if moment is None:
                seen.add(prompt, pair.attempt_both_sides(prompt, ANSWER_TOKENS, name), "failed")
            else:
                seen.add(prompt, given_up(pair, prompt, name, moment), "given up")

        with ThreadPoolExecutor(AT_ONCE) as clients:
            list(clients.map(ask, prompts, moments))
        pair.wait_at_rest()
        seen.report(case.name, "; nothing is held")
    return not seen.wrong and not seen.counted["failed"]


def given_up(pair: Pair, prompt: str, name: str, moment: float) -> Outcome:
    timer = Timer(moment, give_up, (name, (pair.decoder, pair.prefiller)))
    timer.start()
    outcome = pair.attempt_both_sides(prompt, ANSWER_TOKENS, name)
    timer.join()
    return outcome


def routed(
    stack: ExitStack, ground: Ground, decoder_count: int, arguments: Sequence[str]
) -> tuple[Side, list[Side], RoleRouter]:
    """A prefiller and decoders, with SGLang's router before them; all are ready."""
    port = free_port()
    prefiller = ground.side("prefill", ROUTER.kind(), port, name="routed-prefill")
    decoders = [ground.side("decode", ROUTER.kind(), name=f"routed-decode-{index}") for index in range(decoder_count)]
    start(stack, [prefiller.server, *(decoder.server for decoder in decoders)])
    behind = [Behind(decoder.server, 0) for decoder in decoders]
    front = router("traffic-router", Behind(prefiller.server, port), behind, ground.folder, arguments)
    start(stack, [front.server])
    front.wait_knowing([(prefiller.server.url, "prefill"), *((each.server.url, "decode") for each in behind)])
    return prefiller, decoders, front


def benchmarked(ground: Ground, count: int) -> bool:
    """SGLang's own benchmark through its router, which repeats no request. Prints the benchmark's figures."""
    with ExitStack() as stack:
        prefiller, decoders, front = routed(stack, ground, 1, UNREPEATED)
        outcome = ground.folder / "bench.jsonl"
        command = [
            *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai"),
            *("--base-url", front.server.url, "--model", MODEL_NAME, "--tokenizer", str(ground.model)),
            *("--dataset-name", "random-ids", "--random-input-len", "512", "--random-output-len", "32"),
            *("--random-range-ratio", "0.1", "--request-rate", "4", "--num-prompts", str(count)),
            *("--disable-tqdm", "--output-file", str(outcome)),
        ]
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        completed = json.loads(outcome.read_text(encoding="utf-8"))["completed"]
        for side in (prefiller, *decoders):
            side.wait_at_rest()
        print(f"{BENCH}: {completed} of {count} requests completed; nothing is held", flush=True)
    return bool(completed == count)


def through_router(ground: Ground, prompts: list[str], seen: Seen) -> bool:
    """Clients go on until all prompts have been sent, while one decoder after the other is killed and comes back."""
    with ExitStack() as stack:
        prefiller, decoders, front = routed(stack, ground, 2, ("--health-check-interval-secs", "1"))
        over, kills = Event(), Counter[str]()

        def kill_in_turns() -> None:
            turn = 0
            while not over.wait(KILL_EVERY_SECONDS):
                killed = decoders[turn % 2]
                killed.server.kill()
                kills[killed.server.name] += 1
                again = ground.side("decode", ROUTER.kind(), name=f"routed-decode-{turn + 2}", port=killed.server.port)
                start(stack, [again.server])
                decoders[turn % 2] = again
                turn += 1

        def ask(prompt: str) -> None:
            body = greedy_completion(prompt, ANSWER_TOKENS)
            seen.add(prompt, attempt(front.server.post, COMPLETIONS, body), "failed")

        killer = Thread(target=kill_in_turns, name="killer")
        killer.start()
        try:
            with ThreadPoolExecutor(AT_ONCE) as clients:
                list(clients.map(ask, prompts))
        finally:
            over.set()
            killer.join()
        for side in (prefiller, *decoders):
            side.wait_at_rest()
        seen.report(ROUTER.name, f", {kills.total()} decoders killed; nothing is held")
    return not seen.wrong and seen.counted["right"] > 0 and kills.total() > 0


def main() -> int:
    unwind_on_sigterm()
    cases = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(prog="sglang-traffic")
    parser.add_argument("--requests", type=int, default=300, help="for each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join([*cases, ROUTER.name, BENCH])}; all if none is named")
    asked = parser.parse_args()
    folder = ROOT / "build" / "sglang-traffic" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    model = cached_model(cache_home())
    prompts = drawn_prompts(asked.requests, asked.seed)
    unlike = list(dict.fromkeys(prompts))
    answers = sglang_answers(model, unlike, ANSWER_TOKENS, folder, lambda line: print(line, flush=True))
    expected = dict(zip(unlike, answers, strict=True))
    chosen = asked.cases or [*cases, ROUTER.name, BENCH]
    results = []
    try:
        for name in chosen:
            ground, seen = Ground(model, folder / name), Seen(expected)
            if name == BENCH:
                results.append(benchmarked(ground, asked.requests))
            elif name == ROUTER.name:
                results.append(through_router(ground, prompts, seen))
            else:
                results.append(through_pair(cases[name], ground, prompts, asked.seed, seen))
    finally:
        LAUNCHER.stop()
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
