"""Runs stories by hand: ``examples/setup/environment run sglang -- python/tests/sglang/sglang_loop --stories 5000``.

``--seed 42`` describes one story, and runs it; ``--mutants`` runs the backend broken on purpose.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
KERNELS = TESTS.parents[1] / "examples" / "sglang-1p1d" / "cpu_kernels"
sys.path[:1] = [str(each) for each in (TESTS.parent, TESTS, TESTS / "sglang", KERNELS)]
MUTANTS_STORIES = 400
"""So many are tried for a mutant before it counts as alive."""


def main() -> int:
    """The exit status: 1 when something was found, or with ``--mutants`` when one lives that is not known to."""
    parser = argparse.ArgumentParser(prog="sglang_loop", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stories", type=int, default=1000, help="how many seeds, one story each")
    parser.add_argument("--seed", type=int, help="describe and run just this story")
    parser.add_argument("--keep-going", action="store_true", help="also after a violation")
    parser.add_argument("--mutants", action="store_true", help="run the backend broken on purpose: all must be found")
    parser.add_argument("--search", action="store_true", help="with --mutants: from --first on, not the known seeds")
    parser.add_argument("--only", default="", help="with --mutants: those whose name has this")
    parsed = parser.parse_args()
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    warnings.simplefilter("ignore")
    if parsed.mutants:
        return _mutants(parsed)
    seeds = [parsed.seed] if parsed.seed is not None else range(parsed.first, parsed.first + parsed.stories)
    return _stories(list(seeds), describe=parsed.seed is not None, keep_going=parsed.keep_going)


def _stories(seeds: list[int], *, describe: bool, keep_going: bool) -> int:
    from sglang_loop.story import draw
    from sglang_loop.world import World

    begun, ends, found, asks, pages = time.process_time(), Counter[str](), 0, 0, 0
    for done, seed in enumerate(seeds, 1):
        story = draw(seed)
        if describe:
            print(story.describe())
        world = World(story)
        violations = world.run()
        asks, pages = asks + len(story.asks), pages + world.network.pages_written
        ends.update(end for ask in story.asks for end in ask.ends.values())
        if violations:
            found += 1
            print(f"VIOLATION {violations[0]}\n{story.describe()}\nafter {world.rounds} rounds", flush=True)
        if (found and not keep_going) or done == len(seeds):
            seconds = time.process_time() - begun
            print(f"{done} stories, {asks} requests, {pages} writes, ends of legs {dict(ends)}, {seconds:.0f} s of CPU")
            break
    print(f"{found} stories with something wrong" if found else "clean")
    return 1 if found else 0


def _mutants(parsed: argparse.Namespace) -> int:
    from mutant import living

    from sglang_loop.mutants import MUTANTS, StoryMutant
    from sglang_loop.story import draw
    from sglang_loop.world import World

    def find(mutant: StoryMutant) -> tuple[bool, str]:
        first = parsed.first if parsed.search else mutant.seed
        count = MUTANTS_STORIES if parsed.search else int(first >= 0)
        for seed in range(first, first + count):
            if violations := World(draw(seed)).run():
                return True, f"story {seed}: {violations[0]}"
        return False, f"in {count} stories"

    return 1 if living([mutant for mutant in MUTANTS if parsed.only in mutant.what], find) else 0


if __name__ == "__main__":
    sys.exit(main())
