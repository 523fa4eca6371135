"""What handing the prefiller's first token on saves: times of the first two tokens, with it and without it.

    make race-first-token [ARGS="--rounds 10 --lengths 64 512 1500"]

One pair of vLLM servers, prompts that no engine has seen, one by one, in three ways that rotate: both legs at once, as
the stock router sends them; the decoder's leg after the prefiller's answer; and that with the first token behind the
prompt, which is then the client's at the prefiller's answer. Wants a quiet machine: foreign cores are printed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

sys.path.extend(
    str(Path(__file__).resolve().parents[2] / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")
)

import quiet
from bed import PREFILL_LEG
from contenders import Ground, KvMessenger
from demo_console import say, unwind_on_sigterm
from make_model import cached_model
from prompts import cache_home, random_prompt
from server_process import start_all, words_of
from warm_starts import LAUNCHER

ROOT: Final = Path(__file__).resolve().parents[2]
AT_ONCE, BEHIND, HANDED_ON = "both legs at once", "one leg behind the other", "first token handed on"
WAYS: Final = (AT_ONCE, BEHIND, HANDED_ON)
TOKENS: Final = 4
WARM_UPS: Final = 2


class FirstTokens:
    """Asks the pair. One thread."""

    def __init__(self, pair: KvMessenger, seed: int) -> None:
        self.pair = pair
        self.seeds = random.Random(seed)

    def asked(self, way: str, length: int) -> dict[str, Any]:
        """Milliseconds from the client's request to its first and second token."""
        prompt, request = random_prompt(length, self.seeds.randrange(1 << 30)), f"race-{uuid.uuid4()}"
        sent_ns = time.monotonic_ns()
        if way == AT_ONCE:
            times_ns = self.pair.ask(prompt, TOKENS, request).parts_ns
        else:
            answer = self.pair.prefill(prompt, PREFILL_LEG, request)
            answered_ns, leg = time.monotonic_ns(), answer["kv_transfer_params"]
            if way == BEHIND:
                times_ns = self.pair.decode(prompt, TOKENS, leg, request, sent_ns).parts_ns
            else:
                whole = f"{prompt} {words_of(answer)[0]}"
                times_ns = [answered_ns, *self.pair.decode(whole, TOKENS - 1, leg, request, sent_ns).parts_ns]
        first_ms, second_ms = ((at_ns - sent_ns) / 1e6 for at_ns in times_ns[:2])
        return {"firstTokenMs": round(first_ms, 1), "secondTokenMs": round(second_ms, 1)}


def run(given: argparse.Namespace) -> None:
    folder = ROOT / "build" / "race-first-token" / time.strftime("%Y%m%d-%H%M%S")
    lines: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stack.callback(LAUNCHER.stop)
        legs = stack.enter_context(ThreadPoolExecutor(2))
        pair = KvMessenger(Ground(cached_model(cache_home()), folder, folder), legs)
        for server in pair.servers:
            stack.callback(server.stop)
        start_all(list(pair.servers), say)
        race = FirstTokens(pair, given.seed)
        for way in WAYS * WARM_UPS:  # the first one proves the pair
            race.asked(way, max(given.lengths))
        if not quiet.wait_quiet(given.wait_seconds):
            say("race-first-token: the machine did not become quiet")
        for index in range(given.rounds):
            for length in given.lengths:
                for way in (*WAYS[index % 3 :], *WAYS[: index % 3]):
                    before = quiet.now()
                    line = {"way": way, "tokens": length, **race.asked(way, length)}
                    line["foreignCores"] = round(quiet.foreign_cores(before, quiet.now()), 2)
                    lines.append(line)
                    print(json.dumps(line), flush=True)
    summarise(lines)


def summarise(lines: list[dict[str, Any]]) -> None:
    """Medians, and each way's beside those of the legs that follow each other."""
    for length in sorted({line["tokens"] for line in lines}):
        medians = {
            way: [
                statistics.median(line[what] for line in lines if (line["way"], line["tokens"]) == (way, length))
                for what in ("firstTokenMs", "secondTokenMs")
            ]
            for way in WAYS
        }
        for way, (first_ms, second_ms) in medians.items():
            beside = [mine / theirs for mine, theirs in zip((first_ms, second_ms), medians[BEHIND], strict=True)]
            print(
                f"{length} tokens, {way}: first token {first_ms:.0f} ms ({beside[0]:.2f}), second {second_ms:.0f} ms"
                f" ({beside[1]:.2f})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 512, 1500])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait-seconds", type=float, default=60.0, help="for a quiet machine, before the first round")
    given = parser.parse_args()
    unwind_on_sigterm()
    run(given)


if __name__ == "__main__":
    main()
