"""Times of first tokens with and without the comparison of computed KV, by turns in one run.

    examples/setup/environment run engine --wheel "$(cat python/dist/.wheel)" -- \
        e2e-tests/proof/first_token.py [--rounds N] [--restarts N] [--windows]

One prefiller has three decoders: with ``last_token_check`` *off*, with *fail*, and with *fail* where no pair stays
proven, so that each request is that of a new pair (*first*). Each prompt is new. Then the prefiller restarts
several times, and *off* and *fail* get one request each of a pair that is new in every respect.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("e2e-tests", "examples", "examples/vllm-1p1d")]

from bed import (  # noqa: E402
    Messenger,
    decode_leg,
    decoder,
    messenger,
    prefiller,
    prove,
    send_decode,
    send_prefill,
    start_messengers,
)
from make_model import TinyGemma, TinyModel, cached_model  # noqa: E402
from prompts import cache_home, random_prompt  # noqa: E402
from server_process import complete, start_all, words_of  # noqa: E402
from warm_starts import LAUNCHER  # noqa: E402

PLUGINS = Path(__file__).resolve().parent / "vllm_plugins"
LENGTHS = (32, 500, 1500)
WARM_UP_ROUNDS = 3
RESTARTED_TOKENS = 500
FRESH_SEEDS = iter(range(50_000, 1_000_000))


def prompt_of(tokens: int) -> str:
    return random_prompt(tokens, next(FRESH_SEEDS))


def first_token_ms(source: Messenger, target: Messenger, tokens: int) -> float:
    """Both legs at once, as a router sends them; the answer is one token."""
    prompt, request = prompt_of(tokens), f"first-{uuid.uuid4()}"
    with ThreadPoolExecutor(1) as other:
        begun = time.perf_counter()
        prefill = other.submit(send_prefill, source, prompt, request)
        words_of(send_decode(target, prompt, 1, decode_leg(source, request), request))
        taken_ms = (time.perf_counter() - begun) * 1000
        prefill.result()
    return taken_ms


def line(what: str, taken_ms: Sequence[float]) -> str:
    quarters = statistics.quantiles(taken_ms, n=4)
    spread = f"{quarters[0]:.0f} to {quarters[2]:.0f}, all {min(taken_ms):.0f} to {max(taken_ms):.0f}"
    return f"{what}: {len(taken_ms)} requests, median {quarters[1]:.1f} ms, middle half {spread}"


def by_turns(source: Messenger, decoders: Sequence[Messenger], rounds: int) -> None:
    """Each decoder in turn is the first of a round."""
    for tokens in LENGTHS:
        taken: dict[str, list[float]] = {each.server.name: [] for each in decoders}
        for turn in range(WARM_UP_ROUNDS + rounds):
            first = turn % len(decoders)
            for target in (*decoders[first:], *decoders[:first]):
                took = first_token_ms(source, target, tokens)
                if turn >= WARM_UP_ROUNDS:
                    taken[target.server.name].append(took)
        for name, taken_ms in taken.items():
            print(line(f"{tokens} tokens, {name}", taken_ms), flush=True)


def after_restarts(source: Messenger, decoders: Sequence[Messenger], restarts: int) -> None:
    """The connection is new as well. The prefiller computes plain prompts first, so that its passes are warm."""
    taken: dict[str, list[float]] = {each.server.name: [] for each in decoders}
    for turn in range(restarts):
        source.server.stop()
        start_all([source.server], lambda _: None)
        for _ in range(WARM_UP_ROUNDS):
            words_of(complete(source.server, prompt_of(RESTARTED_TOKENS), 1))
        for target in decoders if turn % 2 else reversed(decoders):
            taken[target.server.name].append(first_token_ms(source, target, RESTARTED_TOKENS))
    for name, taken_ms in taken.items():
        print(line(f"after a restart, {RESTARTED_TOKENS} tokens, {name}", taken_ms), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="first_token.py")
    parser.add_argument("--rounds", type=int, default=30, help="requests of each length to each decoder")
    parser.add_argument("--restarts", type=int, default=8, help="of the prefiller")
    parser.add_argument("--windows", action="store_true", help="Gemma 3, whose new pairs are shadowed")
    given = parser.parse_args()
    model = cached_model(cache_home(), TinyGemma() if given.windows else TinyModel())
    plugged = {"PYTHONPATH": str(PLUGINS)}
    sides = [
        prefiller("prefiller", options={"environment": plugged}),
        decoder("off", extra={"last_token_check": "off"}, options={"environment": plugged}),
        decoder("fail", extra={"last_token_check": "fail"}, options={"environment": plugged}),
        decoder("first", extra={"last_token_check": "fail"}, options={"environment": {**plugged, "PROOF_EACH": "1"}}),
    ]
    folder = ROOT / "build" / "first-token" / time.strftime("%Y%m%d-%H%M%S")
    source, *decoders = [messenger(side, model, folder) for side in sides]
    off, fail, _ = decoders
    try:
        with ExitStack() as stack:
            start_messengers(stack, [source, *decoders])
            prove(source, fail)
            by_turns(source, decoders, given.rounds)
            if given.restarts:
                after_restarts(source, (off, fail), given.restarts)
    finally:
        LAUNCHER.stop()


if __name__ == "__main__":
    main()
