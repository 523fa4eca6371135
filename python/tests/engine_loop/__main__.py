"""Runs worlds, by hand or for the test: ``python python/tests/engine_loop --kind mixed --seed 1 --requests 200``."""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

MUTANTS_PATIENCE_SECONDS = 3.0
"""Of a mutant that is found because its world stands still: no limit ends what such a world holds."""
TESTS = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(TESTS.parent), str(TESTS)]

from engine_loop import vllm_release  # noqa: E402


def main() -> int:
    """The exit status: 1 when something was found."""
    parser = argparse.ArgumentParser(prog="engine_loop", description=__doc__)
    parser.add_argument("--release", default=vllm_release.INSTALLED, help="of vLLM")
    parser.add_argument("--kind", default="all", help="of traffic, or several with commas, taken in turn")
    parser.add_argument("--seed", type=int, default=1, help="of the first world")
    parser.add_argument("--requests", type=int, default=100, help="in all worlds together")
    parser.add_argument("--worlds", default="", help="instead of those three: just these, such as mixed:45,crossed:31")
    parser.add_argument("--world", type=int, default=100, help="requests of a world")
    parser.add_argument(
        "--patience", type=float, help="seconds after which a world stands still: 600, and 3 with --mutants"
    )
    parser.add_argument("--keep-going", action="store_true", help="also after a violation")
    parser.add_argument(
        "--mutants", action="store_true", help="run the connector broken on purpose instead: all must be found"
    )
    parser.add_argument("--shadows", action="store_true", help="prove each pair again and again, by shadow fetches")
    parser.add_argument("--log", action="store_true", help="print what the connector and the messengers log")
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="engine-loop-") as folder:
        # vLLM's sockets and configurations go there too, and it removes neither.
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        return _run(parsed)


def _run(parsed: argparse.Namespace) -> int:
    vllm_release.choose(parsed.release)
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    log = logging.getLogger("vllm.kv_messenger")
    log.setLevel(logging.ERROR)
    log.propagate = False
    if parsed.log:
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler(sys.stdout))
    gc.freeze()
    if parsed.mutants:
        return _mutants(parsed.world, parsed.patience or MUTANTS_PATIENCE_SECONDS)
    worlds = (
        _named(parsed.worlds)
        if parsed.worlds
        else _in_turn(_all_kinds(parsed.release) if parsed.kind == "all" else parsed.kind.split(","), parsed.seed)
    )
    with contextlib.ExitStack() as stack:
        return _worlds(parsed, worlds, _shadows(stack) if parsed.shadows else Counter())


def _all_kinds(release: str) -> list[str]:
    from engine_loop.kinds import KINDS

    without = () if release in vllm_release.SLEEPING else ("sleep",)
    return [kind for kind in KINDS if kind not in without]


def _shadows(stack: contextlib.ExitStack) -> Counter[str]:
    from engine_loop import shadows

    return stack.enter_context(shadows.everywhere())


def _worlds(parsed: argparse.Namespace, worlds: Iterable[tuple[str, int]], seen: Counter[str]) -> int:
    from engine_loop.loop import PATIENCE_SECONDS
    from engine_loop.pull_world import open_world

    begun, done, found = time.monotonic(), 0, False
    for kind, seed in worlds:
        began = time.monotonic()
        world = open_world(kind, seed, parsed.world, parsed.patience or PATIENCE_SECONDS)
        violations = world.run()
        requests = sum(len(ask.prompts) * ask.choices for group in world.plan.groups for ask in group)
        done += requests
        print(
            f"{kind} seed {seed}: {requests} requests, ended {world.ended}, {world.pages_checked()} pages checked,"
            f" {time.monotonic() - began:.1f} s"
            f"{_outlived(world.outlived)}{_slept(world.sleeper.slept)}{_pulled(world.results)}",
            flush=True,
        )
        if seen["different rows"]:
            violations = [*violations, f"wrong shadow: {dict(seen)}"]
        for violation in (*violations[:3], *violations[3:][-3:]):
            found = True
            print(f"VIOLATION kind {kind} seed {seed}: {violation}", flush=True)
        if (found and not parsed.keep_going) or (done >= parsed.requests and not parsed.worlds):
            break
    if parsed.shadows:
        print(f"shadow fetches: {dict(seen)}")
    print(f"{done} requests in {time.monotonic() - begun:.0f} s, {'something is wrong' if found else 'clean'}")
    return 1 if found else 0


def _outlived(asks: Collection[str]) -> str:
    return f", {len(asks)} asks were open when something failed for longer than the shortest limit" if asks else ""


def _slept(counts: Mapping[str, int]) -> str:
    seen = {mode: count for mode, count in counts.items() if count}
    return f", slept {seen}" if seen else ""


def _pulled(results: Mapping[str, int]) -> str:
    return f", pulls {dict(results)}" if results else ""


def _named(worlds: str) -> Iterator[tuple[str, int]]:
    for world in worlds.split(","):
        kind, seed = world.split(":")
        yield kind, int(seed)


def _in_turn(kinds: Sequence[str], first_seed: int) -> Iterator[tuple[str, int]]:
    """Without an end."""
    return zip(itertools.cycle(kinds), itertools.count(first_seed), strict=False)


def _mutants(requests: int, patience_seconds: float) -> int:
    """How many live."""
    from mutant import living

    from engine_loop.loop import PATIENCE_SECONDS
    from engine_loop.mutants import MUTANTS, WorldMutant
    from engine_loop.pull_world import open_world

    def find(mutant: WorldMutant) -> tuple[bool, str]:
        stands_still = "stands still" in mutant.found_as
        patience = max(patience_seconds, mutant.patience_seconds) if stands_still else PATIENCE_SECONDS
        seen = ""
        for seed in range(mutant.seed, mutant.seed + mutant.worlds):
            world = open_world(mutant.kind, seed, requests, patience)
            world.plan.grants_awaited_rounds = mutant.grants_awaited_rounds
            violations = world.run()
            seen = f"{mutant.kind} {seed}: {(violations or ['nothing'])[0]}"
            if any(violation.startswith(mutant.found_as) for violation in violations):
                return True, seen
        return False, seen

    return living(MUTANTS, find)


if __name__ == "__main__":
    sys.exit(main())
