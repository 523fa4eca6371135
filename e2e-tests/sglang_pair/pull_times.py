"""How long an SGLang prefiller takes to a first token: computed, and with the beginning pulled; interleaved."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder)
    for folder in ("e2e-tests", "examples", "examples/vllm-1p1d", "examples/sglang-1p1d")
)

from make_model import cached_model
from prompts import cache_home, random_prompt
from pulls_trio import Trio
from sglang_bed import COMPLETIONS, Ground, Side
from warm_sglang import LAUNCHER

PROMPT_TOKENS = 960
BEGINNING_TOKENS = 880
WARM_UP_ROUNDS = 2


def seconds_to_first_token(trio: Trio, prompt: str, source: Side | None) -> float:
    """At the second prefiller with the decoder."""
    body = trio.body(trio.second, prompt, source, answer_tokens=1)
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as legs:
        answers = list(legs.map(lambda side: side.server.post(COMPLETIONS, body), trio.sides(trio.second)))
    seconds = time.monotonic() - begun
    assert all("choices" in answer for answer in answers), answers
    return seconds


def measured(trio: Trio, rounds: int) -> dict[str, list[float]]:
    """The seconds of each kind, a prompt of its own for each."""
    times: dict[str, list[float]] = {"computed": [], "pulled": []}
    for number in range(WARM_UP_ROUNDS + rounds):
        for kind in times if number % 2 else reversed(list(times)):
            words = random_prompt(PROMPT_TOKENS, 7000 + 2 * number + (kind == "pulled")).split()
            trio.ask(trio.first, " ".join(words[:BEGINNING_TOKENS]))
            source = trio.first.prefiller if kind == "pulled" else None
            seconds = seconds_to_first_token(trio, " ".join(words), source)
            if number >= WARM_UP_ROUNDS:
                times[kind].append(seconds)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="pull-times-"))
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        trio = Trio.started(Ground(cached_model(cache_home()), folder), stack)
        times = measured(trio, rounds)
        arrived = trio.second.prefiller.metric("kv_messenger_tokens_pulled_total")
    medians = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    for kind, seconds in times.items():
        print(f"{kind}: median {1000 * medians[kind]:.0f} ms of {len(seconds)}, least {1000 * min(seconds):.0f} ms")
    print(f"pulled / computed: {medians['pulled'] / medians['computed']:.2f}; {arrived:.0f} tokens were pulled in all")


if __name__ == "__main__":
    main()
