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
AFTER_FAILURES: Final = Series(seed=10, lengths=tuple([150] * 12))
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
FAULTS: Final = Series(seed=12, lengths=tuple([260] * 72))
"""Drawn from one after the other by the tests of faults."""
ABORTED: Final = Series(seed=13, lengths=aborted_lengths())
LINKS: Final = Series(seed=14, lengths=tuple([260] * 12))
IDS: Final = Series(seed=15, lengths=tuple([100] * 16))

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
)
OF_FAULTS: Final = (FAULTS, ABORTED, LINKS)
"""Asked apart, so that only the tests of faults wait for these answers."""
OF_EVERYDAY: Final = (IDS,)


def prompts_of(serieses: tuple[Series, ...]) -> list[str]:
    return [prompt for series in serieses for prompt in series.prompts()]
