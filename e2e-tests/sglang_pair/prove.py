"""Runs pairs of SGLang servers whose settings are not compared, and prints what the comparison of computed KV finds.

    examples/setup/environment run sglang --wheel "$(cat python/dist/.wheel)" -- e2e-tests/sglang_pair/prove.py CASE…

The exit code is 1 if a wrong pair gave an answer other than a single SGLang's, if its first request was not refuted, or
if a right pair was suspected once. Right pairs are compared at each request, so that each can raise a false alarm.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
sys.path.extend(str(ROOT / folder) for folder in FOLDERS)

from make_model import (  # noqa: E402
    TinyGemma,
    TinyMistral,
    TinyModel,
    TinyQwen3Moe,
    cached_model,
)
from prompts import cache_home  # noqa: E402
from proof.asked import ANSWER_TOKENS, AT_ONCE, prompts  # noqa: E402
from proof.cases import Prefiller  # noqa: E402
from server_process import Server, free_port, greedy_completion, words_of  # noqa: E402
from sglang_bed import Ground, Kind, Pair, Side, start  # noqa: E402
from sglang_servers import EngineOptions, engine  # noqa: E402
from warm_sglang import LAUNCHER, WarmSglang  # noqa: E402

FINDING = re.compile(r"this engine compute different KV, its fetches are refused from now on: (.*)")
PASS = re.compile(r"(\d+) tokens were computed here in (\d+) ms, the largest difference is (\S+), (.*)")


RIGHT = Prefiller("right", right=True)


@dataclass(frozen=True)
class Case:
    name: str
    model: Any
    prefillers: tuple[Prefiller, ...]
    arguments: tuple[str, ...] = ()
    tp_size: int = 1
    page_tokens: int = 16
    environment: dict[str, str] = field(default_factory=dict)
    check: str = "fail"
    """The decoder's ``last_token_check``."""

    def of_prefiller(self) -> Case:
        """Without the arguments that only a decoder takes."""
        return replace(self, arguments=tuple(each for each in self.arguments if "decode" not in each))


def overrides(**fields: Any) -> tuple[str, ...]:
    return ("--json-model-override-args", json.dumps(fields))


OTHER_BASE = overrides(
    rope_theta=500_000.0, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}, rope_scaling=None
)


def dtype(name: str) -> tuple[str, ...]:
    return ("--dtype", name)


def of_weights(name: str) -> Case:
    wrong = (
        Prefiller("other-weights", right=False, model=TinyModel(seed=21)),
        Prefiller("other-rope-base", right=False, arguments=OTHER_BASE),
    )
    return Case(f"weights-{name}", TinyModel(), (RIGHT, *wrong), dtype(name))


def of_experts(name: str) -> Case:
    fewer = Prefiller("fewer-experts", right=False, arguments=overrides(num_experts_per_tok=1))
    return Case(f"experts-{name}", TinyQwen3Moe(), (RIGHT, fewer), dtype(name))


def of_ranks(name: str, prefiller: int, decoder: int) -> Case:
    wrong = Prefiller("other-weights", right=False, model=TinyModel(seed=21), tp_size=prefiller)
    right = replace(RIGHT, tp_size=prefiller)
    return Case(f"ranks-{prefiller}-{decoder}-{name}", TinyModel(), (right, wrong), dtype(name), tp_size=decoder)


SHARED_WINDOWS = ("--disable-hybrid-swa-memory",)
CASES = (
    Case("right-float32", TinyModel(), (RIGHT,)),
    *(of_weights(name) for name in ("float32", "bfloat16", "float16")),
    *(of_experts(name) for name in ("float32", "bfloat16")),
    *(of_ranks(name, 2, 1) for name in ("float32", "bfloat16")),
    *(of_ranks(name, 1, 2) for name in ("float32", "bfloat16")),
    Case("decoder-cache-float32", TinyModel(), (RIGHT,), ("--disaggregation-decode-enable-radix-cache",)),
    Case(
        "windows-float32",
        TinyGemma(),
        (RIGHT, Prefiller("other-weights", False, model=TinyGemma(seed=21))),
        SHARED_WINDOWS,
    ),
    Case("window-bfloat16", TinyMistral(), (RIGHT,), dtype("bfloat16")),
)


@dataclass
class Seen:
    """The answers of one pair."""

    right: int = 0
    unlike: list[int] = field(default_factory=list)
    """Lengths of prompts that were answered, and not as a single SGLang answers."""
    failed: list[str] = field(default_factory=list)


class Asker:
    """Sends prompts through a pair, and to a single SGLang."""

    def __init__(self, alone: Server) -> None:
        self._alone = alone
        self._known: dict[str, list[str]] = {}

    def expected(self, prompt: str) -> list[str]:
        if prompt not in self._known:
            body = greedy_completion(prompt, ANSWER_TOKENS)
            self._known[prompt] = words_of(self._alone.post("/v1/completions", body))
        return self._known[prompt]

    def ask(self, pair: Pair, count: int) -> Seen:
        """The first requests one by one, the others at once; half of them repeat the beginning of an earlier one."""
        seen = Seen()

        def one(prompt: str) -> None:
            outcome = pair.attempt_both_sides(prompt, ANSWER_TOKENS, f"proof-{uuid.uuid4()}")
            if outcome.words is None:
                seen.failed.append(str(outcome.detail))
            elif outcome.words == self.expected(prompt):
                seen.right += 1
            else:
                seen.unlike.append(len(prompt.split()))
                print(f"   {len(prompt.split())} tokens: {outcome.words}, alone: {self.expected(prompt)}", flush=True)

        first, rest = prompts(count)
        for prompt in first:
            one(prompt)
        with ThreadPoolExecutor(AT_ONCE) as clients:
            list(clients.map(one, rest))
        return seen


def figures(decoder: Side) -> Counter[str]:
    page = "\n".join(decoder.metrics_pages())
    found = re.findall(r'^kv_messenger_last_tokens_compared_total\{.*reason="(\w+)".*\} (\S+)$', page, re.MULTILINE)
    compared: Counter[str] = Counter()
    for reason, number in found:
        compared[reason] += round(float(number))
    compared["refuted"] = round(decoder.metric("kv_messenger_fetches_refuted_total"))
    return compared


def judged(of: Prefiller, seen: Seen, compared: Counter[str]) -> str:
    """What is wrong with it; "" if nothing is."""
    if of.right:
        return (
            "a right pair was suspected, or not judged"
            if seen.failed or compared["different"] or not compared["equal"]
            else ""
        )
    if seen.unlike:
        return f"{len(seen.unlike)} answers are wrong"
    return "" if compared["different"] >= 1 and compared["refuted"] else "the pair was not refuted"


def kind_of(case: Case, of: Case | Prefiller) -> Kind:
    return Kind(
        tp_size=of.tp_size,
        page_tokens=case.page_tokens,
        uncompared=True,
        options={"last_token_check": case.check},
        arguments=(*case.arguments, *of.arguments) if of is not case else case.arguments,
        environment={**case.environment, "PROOF_COMPARES_ALL": "1"},
    )


@dataclass(frozen=True)
class Bench:
    """A case's decoder, and a single SGLang with its settings."""

    case: Case
    ground: Ground
    decoder: Side
    asker: Asker

    def judge(self, of: Prefiller, count: int, stack: ExitStack) -> bool:
        """Whether a prefiller was judged rightly; prints what was seen."""
        port = free_port()
        source = replace(self.ground, model=cached_model(cache_home(), of.model or self.case.model))
        prefiller = source.side("prefill", kind_of(self.case.of_prefiller(), of), port, name=f"prefill-{of.name}")
        start(stack, [prefiller.server])
        pair = Pair(prefiller, self.decoder, self.decoder.server, port, self.ground.gate)
        before, begun, log_start = figures(self.decoder), time.monotonic(), len(self.decoder.server.log())
        seen = self.asker.ask(pair, count)
        compared = figures(self.decoder) - before
        fault = judged(of, seen, compared)
        log = self.decoder.server.log()[log_start:]
        print(
            f"{self.case.name} {of.name}: {seen.right} answers as a single SGLang's, others {seen.unlike},"
            f" {len(seen.failed)} failed; {dict(compared)}; {cost(log)}; {time.monotonic() - begun:.0f} s;"
            f" {fault or 'as expected'}",
            flush=True,
        )
        for text in dict.fromkeys([*FINDING.findall(log), *seen.failed[:2]]):
            print(f"   {text[:400]}", flush=True)
        self.decoder.wait_at_rest()
        prefiller.server.stop()
        return not fault


def cost(log: str) -> str:
    passes = [(int(tokens), int(ms), float(worst)) for tokens, ms, worst, _ in PASS.findall(log)]
    if not passes:
        return "no pass"
    worst = max(worst for *_, worst in passes)
    longest = max(ms for _, ms, _ in passes)
    return f"{statistics.median(ms for _, ms, _ in passes)} ms a pass (at most {longest}), worst {worst:.3g}"


def run(case: Case, count: int, folder: Path) -> bool:
    ground = Ground(cached_model(cache_home(), case.model), folder)
    folder.mkdir(parents=True, exist_ok=True)
    decoder = ground.side("decode", kind_of(case, case), name="decode")
    options = EngineOptions(
        ground.model,
        tp_size=case.tp_size,
        core=0,
        page_tokens=case.page_tokens,
        arguments=case.of_prefiller().arguments,
        environment=case.environment,
    )
    alone = engine("alone", options, folder, kind=WarmSglang)
    with ExitStack() as stack:
        start(stack, [decoder.server, alone])
        bench = Bench(case, ground, decoder, Asker(alone))
        results = [bench.judge(of, count, stack) for of in case.prefillers]
        return all(results)


def main() -> int:
    parser = argparse.ArgumentParser(prog="proof")
    parser.add_argument("--requests", type=int, default=24, help="for each pair")
    parser.add_argument("--check", default="fail", choices=("off", "warn", "fail"), help="last_token_check")
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(case.name for case in CASES)}; all if none is named")
    asked = parser.parse_args()
    folder = ROOT / "build" / "proof-sglang" / time.strftime("%Y%m%d-%H%M%S")
    chosen = [replace(case, check=asked.check) for case in CASES if not asked.cases or case.name in asked.cases]
    results = []
    try:
        for case in chosen:
            try:
                results.append(run(case, asked.requests, folder / case.name))
            except Exception as fault:
                results.append(False)
                print(f"{case.name}: {fault}"[:3000], flush=True)
    finally:
        LAUNCHER.stop()
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
