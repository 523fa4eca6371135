"""Every prompt that the end-to-end tests send, in one place, so that one start of the reference answers all of them.

A prompt is used by one test only: with prefix caching on, a second use would be answered from pages, not by a transfer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from prompts import random_prompt

ANSWER_TOKENS: Final = 16
LENGTHS: Final = (1, 2, 20, 127, 128, 129, 200, 700, 1500)
LOAD_REQUESTS: Final = 64
LOAD_IN_FLIGHT: Final = 16
LOAD_TOKENS_MAX: Final = 600


@dataclass(frozen=True)
class Series:
    """The prompts of one test: `lengths` tokens each, drawn from `seed`."""

    seed: int
    lengths: tuple[int, ...]

    def attributed_tokens(self) -> int:
        """How many of these tokens vLLM attributes to a transfer when all of them came by one.

        A decoder computes the last prompt token again. When that is the whole prompt vLLM forgets that it was loaded,
        and counts the token as computed, whatever the connector.
        """
        return sum(length for length in self.lengths if length > 1)

    def prompts(self) -> list[str]:
        return [random_prompt(length, self.seed + 1000 * index) for index, length in enumerate(self.lengths)]


ABORTED_REQUESTS: Final = 200
ABORTED_TOKENS_MAX: Final = 140


def aborted_lengths() -> tuple[int, ...]:
    draw = random.Random(200)
    return tuple(draw.randint(1, ABORTED_TOKENS_MAX) for _ in range(ABORTED_REQUESTS))


def load_lengths() -> tuple[int, ...]:
    draw = random.Random(64)
    return tuple(draw.randint(1, LOAD_TOKENS_MAX) for _ in range(LOAD_REQUESTS))


BOTH_LEGS: Final = {"shm": Series(seed=1, lengths=LENGTHS), "tcp": Series(seed=21, lengths=LENGTHS)}
ROUTED: Final = Series(seed=2, lengths=(300, 300, 700, 40, 129))
ROUTED_AFTER_RESTART: Final = Series(seed=3, lengths=(300, 130, 515))
DECODER_FIRST: Final = Series(seed=4, lengths=(1, 128, 700, 40))
DROPPED: Final = Series(seed=5, lengths=(200, 700))
OVERLAPPED_LENGTHS: Final = (700, 1500)
OVERLAPPED: Final = {
    "shm": Series(seed=6, lengths=OVERLAPPED_LENGTHS),
    "tcp": Series(seed=26, lengths=OVERLAPPED_LENGTHS),
}
HELD: Final = {"shm": Series(seed=18, lengths=(700,)), "tcp": Series(seed=19, lengths=(700,))}
LOAD: Final = Series(seed=7, lengths=load_lengths())
CACHED_ON_PREFILLER: Final = Series(seed=8, lengths=(640,))
CACHED_ON_DECODER: Final = Series(seed=9, lengths=(640,))
AFTER_FAILURES: Final = Series(seed=10, lengths=tuple([150] * 14))
ALONE: Final = Series(seed=11, lengths=(300,))
SHARDED_LENGTHS: Final = (20, 129, 700)
SHARDED_PAIRS: Final = (
    *(f"{source} to {target}" for source in ("node", "rank") for target in ("node", "rank")),
    *(f"{source} to one rank" for source in ("node", "rank")),
    *(f"one rank to {target}" for target in ("node", "rank")),
    "after a death",
)
"""Engines of two ranks are named by what they have a messenger for."""
SHARDED: Final = {pair: Series(seed=100 + index, lengths=SHARDED_LENGTHS) for index, pair in enumerate(SHARDED_PAIRS)}
FAULT_TESTS: Final = (
    "killed_prefiller_fails_what_waits_for_it",
    "killed_decoder_costs_its_prefiller_nothing",
    "idle_prefiller_whose_worker_is_killed_comes_back_at_its_address",
    "late_writes_of_a_stopped_prefiller_reach_no_page_in_use[shm]",
    "late_writes_of_a_stopped_prefiller_reach_no_page_in_use[tcp]",
    "requests_to_a_prefiller_that_is_silent_for_ever_end_within_their_limit",
    "stop_shorter_than_the_silence_limit_only_delays[prefiller]",
    "stop_shorter_than_the_silence_limit_only_delays[decoder]",
    "decoder_stopped_beyond_the_silence_limit_is_given_up_and_comes_back",
    "router_that_sends_one_leg_leaves_nothing_behind",
    "client_that_leaves_while_it_waits_leaves_nothing_behind[waiting for all]",
    "client_that_leaves_while_it_waits_leaves_nothing_behind[streaming]",
    "next_prefiller_is_asked_when_the_first_is_not_there",
    "random_aborts_leave_right_tokens_and_nothing_behind",
    "prompt_beyond_the_prefillers_max_model_len_fails_soon_and_leaves_nothing_behind",
)
FAULTS: Final = {name: Series(seed=40_000 + index, lengths=tuple([260] * 8)) for index, name in enumerate(FAULT_TESTS)}
"""Each test of faults has prompts of its own, so that one that fails takes none from another."""
ABORTED: Final = Series(seed=13, lengths=aborted_lengths())
LINKS: Final = Series(seed=14, lengths=tuple([260] * 12))
IDS: Final = Series(seed=15, lengths=tuple([100] * 16))
QUEUED_REQUESTS: Final = 200
QUEUED: Final = {
    "prefiller": Series(seed=16, lengths=tuple([20] * QUEUED_REQUESTS)),
    "decoder": Series(seed=17, lengths=tuple([20] * QUEUED_REQUESTS)),
}

ALL: Final = (
    *BOTH_LEGS.values(),
    ROUTED,
    ROUTED_AFTER_RESTART,
    DECODER_FIRST,
    DROPPED,
    *OVERLAPPED.values(),
    *HELD.values(),
    LOAD,
    CACHED_ON_PREFILLER,
    CACHED_ON_DECODER,
    AFTER_FAILURES,
    ALONE,
    *SHARDED.values(),
    *FAULTS.values(),
    ABORTED,
    LINKS,
)
OF_EVERYDAY: Final = (IDS, *QUEUED.values())


def prompts_of(serieses: tuple[Series, ...]) -> list[str]:
    return [prompt for series in serieses for prompt in series.prompts()]
