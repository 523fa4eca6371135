"""Sends random prompts whose beginnings come from right, wrong, stale and dead engines; prints how many are right.

    make sglang-pull-traffic [ARGS="--requests 1000 --seed 1"]

Two prefillers and a decoder with its cache, all of SGLang. Each answer is compared with a single SGLang's. Some
requests are given up at a random moment, caches are emptied now and then, and hints name what is no engine. Afterwards
nothing may be held anywhere. The exit code is 1 if an answer is wrong or missing.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from threading import Timer
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
sys.path.extend(str(ROOT / folder) for folder in FOLDERS)

from demo_console import unwind_on_sigterm  # noqa: E402
from faults import Outcome, attempt  # noqa: E402
from make_model import cached_model  # noqa: E402
from plain_sglang import sglang_answers  # noqa: E402
from prompts import cache_home  # noqa: E402
from pulls_trio import Trio  # noqa: E402
from random_traffic import ANSWER_TOKENS, AT_ONCE, GIVEN_UP_AFTER_SECONDS, GIVEN_UP_SHARE, Seen, drawn_prompts  # noqa: E402
from server_process import LOOPBACK, free_port, metric_sum  # noqa: E402
from sglang_bed import COMPLETIONS, Ground, Pair, Side, give_up  # noqa: E402
from warm_sglang import LAUNCHER  # noqa: E402

PROMPTS: Final = 150
"""Few, so that caches have many of them in part, and one answer of the single SGLang serves several requests."""
EMPTIED_SHARE: Final = 0.1
"""Of the requests: a cache is emptied before."""
SALTED_SHARE: Final = 0.2
REPORTED_EVERY: Final = 100
UNREADABLE: Final[tuple[object, ...]] = (
    7,
    [],
    {"remote_host": ["10.0.0.1"], "remote_port": 5},
    {"remote_host": "x" * 100_000, "remote_port": 5},
    {"remote_host": LOOPBACK, "remote_port": "5"},
    {"remote_host": LOOPBACK, "remote_port": 70_000},
    {"remote_host": LOOPBACK, "remote_port": {"remote_port": 5}},
    {"remote_host": "a:1,b", "remote_port": 5},
)
UNREACHABLE: Final = (("no-such-host.invalid", 5), ("::1", 5), ("fe80::1%none", 5), ("[::1]", 5), ("h:1,h:1,h:2", 5))


@dataclass(frozen=True)
class Leg:
    """One request: where it is computed, what it names as its source, and when its client leaves."""

    pair: Pair
    prompt: str
    hint: Any
    salt: str
    emptied: Side | None
    leaves_after_seconds: float | None


def named(port: int, host: str = LOOPBACK) -> Mapping[str, Any]:
    return {"remote_host": host, "remote_port": port}


def drawn_legs(trio: Trio, prompts: list[str], count: int, seed: int, silent_port: int) -> list[Leg]:
    """Sources are most often engines: another prefiller, the decoder, or the asking one itself by either name."""
    draw = random.Random(seed)
    pairs = (trio.first, trio.second)
    sides = [trio.first.prefiller, trio.second.prefiller, trio.first.decoder]
    engines = [named(trio.messengers[side.server.name][0], host) for side in sides for host in (LOOPBACK, "localhost")]
    others = [named(free_port()), named(silent_port), *UNREADABLE, *(named(port, host) for host, port in UNREACHABLE)]
    return [
        Leg(
            draw.choice(pairs),
            draw.choice(prompts),
            draw.choice(engines) if draw.random() < 0.7 else draw.choice([None, *others]),
            draw.choice(["a", "b"]) if draw.random() < SALTED_SHARE else "",
            draw.choice(sides) if draw.random() < EMPTIED_SHARE else None,
            draw.uniform(0, GIVEN_UP_AFTER_SECONDS) if draw.random() < GIVEN_UP_SHARE else None,
        )
        for _ in range(count)
    ]


def outcome_of(trio: Trio, leg: Leg) -> Outcome:
    """Both legs of a request, and the decoder's answer."""
    if leg.emptied is not None:
        empty(leg.emptied)
    body = trio.body(leg.pair, leg.prompt, None, ANSWER_TOKENS)
    body |= {"custom_params": {"remote_kv_source": leg.hint}} if leg.hint is not None else {}
    body |= {"cache_salt": leg.salt} if leg.salt else {}
    sides = trio.sides(leg.pair)
    timer = Timer(leg.leaves_after_seconds or 0, give_up, (body["rid"], sides))
    if leg.leaves_after_seconds is not None:
        timer.start()
    with ThreadPoolExecutor(1) as other:
        other.submit(attempt, leg.pair.prefiller.server.post, COMPLETIONS, body)
        outcome = attempt(leg.pair.decoder.server.post, COMPLETIONS, body)
        if leg.leaves_after_seconds is not None:
            timer.join()
            give_up(body["rid"], sides)  # again: the first time the prefiller may not have had the request
    return outcome


def empty(side: Side) -> None:
    """Asks for it; a server that is busy refuses."""
    url = f"{side.server.url}/flush_cache"
    attempt(lambda: {"choices": [], "status": urllib.request.urlopen(url, data=b"{}").status})


def sent(trio: Trio, legs: list[Leg], seen: Seen) -> None:
    def ask(leg: Leg) -> None:
        seen.add(leg.prompt, outcome_of(trio, leg), "failed" if leg.leaves_after_seconds is None else "given up")

    with ThreadPoolExecutor(AT_ONCE) as clients:
        for number, _ in enumerate(clients.map(ask, legs), 1):
            if number % REPORTED_EVERY == 0:
                seen.report(f"{number} requests")
    trio.wait_at_rest()


def pulls_of(trio: Trio) -> Counter[str]:
    """What came of the requests that named a source, at both prefillers."""
    found: Counter[str] = Counter()
    reasons = ("arrived", "failed", "not_worth", "not_held", "unproven", "late", "unreachable", "busy", "misfit")
    for pair in (trio.first, trio.second):
        (page,) = pair.prefiller.metrics_pages()
        for reason in (*reasons, "aborted", "malformed", "unavailable"):
            found[reason] += int(metric_sum(page, "kv_messenger_pulls_ended_total", {"reason": reason}))
    return found


def main() -> int:
    unwind_on_sigterm()
    parser = argparse.ArgumentParser(prog="sglang-pull-traffic", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    folder = ROOT / "build" / "sglang-pull-traffic" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    model = cached_model(cache_home())
    prompts = list(dict.fromkeys(drawn_prompts(PROMPTS, asked.seed)))
    answers = sglang_answers(model, prompts, ANSWER_TOKENS, folder, lambda line: print(line, flush=True))
    seen = Seen(dict(zip(prompts, answers, strict=True)))
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        trio = Trio.started(Ground(model, folder), stack)
        silent = stack.enter_context(create_server((LOOPBACK, 0)))
        legs = drawn_legs(trio, prompts, asked.requests, asked.seed, silent.getsockname()[1])
        begun = time.monotonic()
        sent(trio, legs, seen)
        of_pulls = ", ".join(f"{count} {reason}" for reason, count in pulls_of(trio).most_common() if count)
        seen.report("pulls", f", in {time.monotonic() - begun:.0f} s; nothing is held; pulls: {of_pulls}")
        arrived = pulls_of(trio)["arrived"]
    return 0 if arrived and not seen.wrong and not seen.counted["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
