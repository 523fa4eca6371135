"""Runs pairs whose settings are not compared, and prints what the comparison of computed KV finds.

    examples/setup/environment run engine --wheel "$(cat python/dist/.wheel)" -- e2e-tests/proof [--requests N] CASE…

With ``--each`` no pair stays proven: each request of at least 32 tokens is compared as the first one is.

The exit code is 1 if a wrong pair gave an answer other than the decoder's own, if its first request was not refuted, or
if a right pair was suspected once.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")]

from bed import PREFILL_LEG, Messenger, Side, decode_leg, messenger, start_messengers  # noqa: E402
from make_model import cached_model  # noqa: E402
from prompts import cache_home  # noqa: E402
from server_process import MODEL_NAME  # noqa: E402
from warm_starts import LAUNCHER  # noqa: E402

from proof.asked import ANSWER_TOKENS, AT_ONCE, prompts  # noqa: E402
from proof.cases import CASES, Case, Prefiller  # noqa: E402

PLUGINS = Path(__file__).resolve().parent / "vllm_plugins"
WRONG_REQUESTS_MAX = 40
"""A wrong pair is refuted by its first requests; the others are refused."""
FINDING = re.compile(r"this engine compute different KV[^:]*: (.*)")


@dataclass
class Seen:
    """The answers of one pair."""

    right: int = 0
    unlike: list[int] = field(default_factory=list)
    """Lengths of prompts that were answered, and not as the decoder alone answers."""
    failed: int = 0


def side(name: str, case: Case, of: Case | Prefiller, **more: str) -> Side:
    environment = {"PYTHONPATH": str(PLUGINS), **of.environment, **more}
    options = {
        "dtype": case.dtype,
        "tp_size": of.tp_size,
        "arguments": of.arguments,
        "environment": environment,
        "page_tokens": 128 if case.state else 32,
        "prefix_caching": not case.state,
        "load_failure_policy": "recompute" if case.recomputes and not isinstance(of, Prefiller) else None,
    }
    role, core = ("kv_producer", 0) if isinstance(of, Prefiller) else ("kv_consumer", 1)
    return Side(name, role, core, options=options)


def body(prompt: str, tokens: int, salt: str, leg: Any = None, choices: int = 1) -> dict[str, Any]:
    """`top_k` 1 allows several answers, unlike temperature 0, but draws among tokens that are exactly as probable."""
    greedy: dict[str, Any] = {"temperature": 0} if choices == 1 else {"temperature": 1.0, "top_k": 1, "n": choices}
    asked = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "cache_salt": salt}
    asked |= greedy
    return asked | ({"kv_transfer_params": leg} if leg else {})


def through(prefiller: Messenger, decoder: Messenger, prompt: str, salt: str, choices: int) -> dict[str, Any]:
    request = f"{salt}-{uuid.uuid4()}"
    headers = {"X-Request-Id": request}
    with ThreadPoolExecutor(1) as other:
        prefill = body(prompt, 1, salt, dict(PREFILL_LEG), choices)
        first = other.submit(prefiller.server.post, "/v1/completions", prefill, headers)
        decode = body(prompt, ANSWER_TOKENS, salt, decode_leg(prefiller, request), choices)
        answer = decoder.server.post("/v1/completions", decode, headers)
        first.result()
    return answer


def ask(case: Case, of: Prefiller, pair: tuple[Messenger, Messenger], count: int, at_once: int) -> Seen:
    """The first requests one by one, the others at once; half of them repeat the beginning of an earlier one."""
    seen, (source, target) = Seen(), pair

    def one(prompt: str) -> None:
        answers = [through(source, target, prompt, of.name, case.choices) for _ in range(case.times)]
        alone = None
        for answer in answers:
            if "choices" not in answer:
                seen.failed += 1
                continue
            alone = alone or target.server.post("/v1/completions", body(prompt, ANSWER_TOKENS, "alone"))
            if {choice["text"] for choice in answer["choices"]} == {alone["choices"][0]["text"]}:
                seen.right += 1
            else:
                seen.unlike.append(len(prompt.split()))

    first, rest = prompts(count // case.times)
    for prompt in first:
        one(prompt)
    with ThreadPoolExecutor(at_once) as clients:
        list(clients.map(one, rest))
    return seen


def judged(of: Prefiller, seen: Seen, compared: Counter[str], case: Case) -> str:
    """What is wrong with it; "" if nothing is."""
    if of.right:
        return "" if case.warns or not (seen.failed or compared["different"]) else "a right pair was suspected"
    if seen.unlike:
        return f"{len(seen.unlike)} answers are wrong"
    return "" if compared["different"] >= 1 and compared["refuted"] else "the pair was not refuted"


def figures(target: Messenger) -> Counter[str]:
    """What was compared until now."""
    page = target.metrics_pages()
    found = re.findall(r'^kv_messenger_last_tokens_compared_total\{.*reason="(\w+)".*\} (\S+)$', page, re.MULTILINE)
    compared = Counter({reason: round(float(count)) for reason, count in found})
    compared["refuted"] = round(target.metric("kv_messenger_fetches_refuted_total"))
    return compared


def left(decoder: Messenger) -> str:
    """What the decoder holds although nothing is asked of it; "" if nothing, its pool's blocks included."""
    try:
        decoder.wait_at_rest()
    except AssertionError as leaked:
        return str(leaked)
    return ""


def run(case: Case, count: int, folder: Path, *, each: bool) -> bool:
    models = cache_home()
    proving = {"PROOF_EACH": "1"} if each else {}
    decoder = messenger(side("decoder", case, case, **proving), cached_model(models, case.model), folder)
    sources = [
        messenger(side(f"prefiller-{of.name}", case, of), cached_model(models, of.model or case.model), folder)
        for of in case.prefillers
    ]
    fine = True
    with ExitStack() as stack:
        start_messengers(stack, [decoder, *sources])
        for of, source in zip(case.prefillers, sources, strict=True):
            before, begun = figures(decoder), time.monotonic()
            asked_count = count if of.right else min(count, WRONG_REQUESTS_MAX)
            seen = ask(case, of, (source, decoder), asked_count, 1 if each else AT_ONCE)
            time.sleep(0.5)  # a step passes the last figures on
            decoder.server.post("/v1/completions", body("w9", 1, "alone"))
            compared = figures(decoder) - before
            fault = judged(of, seen, compared, case) or left(decoder)
            fine = fine and not fault
            print(
                f"{case.name} {of.name}: {seen.right} answers as the decoder's own, {len(seen.unlike)} others,"
                f" {seen.failed} failed; compared {dict(compared)}; {time.monotonic() - begun:.0f} s;"
                f" {fault or 'as expected'}",
                flush=True,
            )
        found = dict.fromkeys(FINDING.findall(decoder.server.log()))
        for finding in list(found)[:4]:
            print(f"   {finding}", flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(prog="proof")
    parser.add_argument("--requests", type=int, default=24, help="for each pair")
    parser.add_argument("--each", action="store_true", help="prove the pair anew by each request")
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(case.name for case in CASES)}; all if none is named")
    asked = parser.parse_args()
    folder = ROOT / "build" / "proof" / time.strftime("%Y%m%d-%H%M%S")
    chosen = [case for case in CASES if not asked.cases or case.name in asked.cases]
    try:
        results = [run(case, asked.requests, folder / case.name, each=asked.each) for case in chosen]
    finally:
        LAUNCHER.stop()
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
