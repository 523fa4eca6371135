"""Two SGLang servers get other weights while prompts wait at the prefiller: an answer is of one checkpoint, or none.

The decoder is paused while both legs are sent, so that its own waits outside of its scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from faults import STEP_LIMIT_SECONDS, Outcome
from make_model import cached_model
from prompts import cache_home, random_prompt
from server_process import wait_until, words_of
from sglang_bed import Ground, Kind, Pair, Side
from weights_bed import NEW, OLD
from workload import ANSWER_TOKENS

pytest_plugins = ["sglang_fixtures"]
PROMPTS = [random_prompt(length, 4400 + length) for length in (40, 300)]
"""The first pass of the second computes a part of it."""
UNCACHED = Kind(arguments=("--disable-radix-cache",), environment={"SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20"})
"""Each answer is computed by the weights of its moment."""


@pytest.fixture(scope="module")
def checkpoints() -> tuple[Path, Path]:
    old, new = (cached_model(cache_home(), shape) for shape in (OLD, NEW))
    return old, new


@pytest.fixture(scope="module")
def pair(checkpoints: tuple[Path, Path], run_folder: Path) -> Iterator[Pair]:
    with ExitStack() as held:
        yield Ground(checkpoints[0], run_folder).started_pair(held, UNCACHED)


def load(side: Side, checkpoint: Path) -> None:
    answer = side.server.post("/update_weights_from_disk", {"model_path": str(checkpoint), "flush_cache": False})
    assert answer["success"], answer


def answers(pair: Pair) -> list[list[str]]:
    return [words_of(pair.ask(prompt, ANSWER_TOKENS)) for prompt in PROMPTS]


def answers_of_what_waited(pair: Pair, checkpoint: Path, *updated: Side) -> list[Outcome]:
    """The prompts wait at the prefiller while these sides, paused, get other weights; then both go on."""
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        pair.decoder.server.post("/pause_generation", {"mode": "in_place"})
        asked = [
            pool.submit(pair.attempt_both_sides, prompt, ANSWER_TOKENS, f"waits-{index}-{len(updated)}")
            for index, prompt in enumerate(PROMPTS)
        ]
        wait_until(
            lambda: pair.prefiller.queued("prefill_bootstrap_queue_reqs") == len(PROMPTS),
            STEP_LIMIT_SECONDS,
            "the prefiller has all prompts",
        )
        pair.prefiller.server.post("/pause_generation", {"mode": "in_place"})
        for side in updated:
            load(side, checkpoint)
        for side in (pair.prefiller, pair.decoder):
            side.server.post("/continue_generation", {})
        return [each.result(STEP_LIMIT_SECONDS) for each in asked]


def test_prompts_that_wait_are_answered_by_one_checkpoint_or_not_at_all(
    pair: Pair, checkpoints: tuple[Path, Path]
) -> None:
    old, new = checkpoints
    of_old = answers(pair)

    of_one_side = answers_of_what_waited(pair, new, pair.prefiller)
    assert [outcome.words for outcome in of_one_side] == [None] * len(PROMPTS), "the decoder has other weights"
    pair.wait_at_rest()

    load(pair.decoder, new)
    of_new = answers(pair)
    assert all(one != other for one, other in zip(of_old, of_new, strict=True)), "the checkpoints answer alike"

    of_both = answers_of_what_waited(pair, old, pair.prefiller, pair.decoder)
    assert [outcome.words for outcome in of_both] == of_old, [outcome.detail for outcome in of_both]
    assert answers(pair) == of_old
    pair.wait_at_rest()
