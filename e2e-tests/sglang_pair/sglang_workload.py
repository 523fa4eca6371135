"""Every prompt that the tests with SGLang send, so that one start of the reference answers all of them.

A prompt is used by one test only, except where a hit in the prefiller's cache is what the test is about.
"""

from __future__ import annotations

import random
from typing import Final

from prompts import random_prompt
from workload import ANSWER_TOKENS, Series

__all__ = ["ANSWER_TOKENS"]

LENGTHS: Final = (1, 15, 16, 17, 29, 65, 255, 257, 720)
OVERLAPPED_TOKENS: Final = 720
"""Three chunks, and whole pages."""
LOAD_REQUESTS: Final = 64
LOAD_IN_FLIGHT: Final = 8
LOAD_TOKENS_MAX: Final = 400


def load_lengths() -> tuple[int, ...]:
    draw = random.Random(8)
    return tuple(draw.randint(1, LOAD_TOKENS_MAX) for _ in range(LOAD_REQUESTS))


TOKENS: Final = Series(seed=31, lengths=LENGTHS)
OVERLAPPED: Final = Series(seed=32, lengths=(OVERLAPPED_TOKENS,) * 3)
CACHED: Final = Series(seed=33, lengths=(65, 257, 720))
DROPPED: Final = Series(seed=34, lengths=(17, 31))
"""Too short to be compared with what the decoder computes, which would find that the bytes are missing."""
PREFILLER_SHARDED: Final = Series(seed=35, lengths=(17, 257, 720))
DECODER_SHARDED: Final = Series(seed=36, lengths=(17, 257, 720))
LOAD: Final = Series(seed=37, lengths=load_lengths())
ABORTED: Final = Series(seed=38, lengths=tuple([720] * 8))
PREFILLER_KILLED: Final = Series(seed=39, lengths=(500,) * 6)
DECODER_KILLED: Final = Series(seed=40, lengths=(500,) * 6)
LEFT: Final = Series(seed=41, lengths=(500,))
AFTER_FAULTS: Final = Series(seed=42, lengths=(150,) * 8)
MIXED_REQUESTS: Final = 104
MIXED_AT_ONCE: Final = 8
MIXED_TOKENS_MAX: Final = 700
HIT_TOKENS: Final = 720
RETRACTED_ANSWER_TOKENS: Final = 200
"""Long enough to be paused in the middle."""
PREFILLER_STAGED: Final = Series(seed=43, lengths=(1, 17, 257, 720))
STAGED_AT_ONCE: Final = Series(seed=44, lengths=(400, 65, 720, 33, 512, 720))
SWITCHED: Final = Series(seed=48, lengths=(1, 33, 257, 600))
"""Asked again after each change of roles, when neither side has anything of them in its cache."""

ALL: Final = (
    TOKENS,
    OVERLAPPED,
    CACHED,
    DROPPED,
    PREFILLER_SHARDED,
    DECODER_SHARDED,
    LOAD,
    ABORTED,
    PREFILLER_KILLED,
    DECODER_KILLED,
    LEFT,
    AFTER_FAULTS,
    PREFILLER_STAGED,
    STAGED_AT_ONCE,
    SWITCHED,
)


def mixed_groups() -> list[list[str]]:
    """Prompts of a few beginnings, middles and endings, as chats have them; each group is asked at the same moment.

    Some are the same, some are another one's beginning, and some end on a page or on a chunk.
    """
    draw = random.Random(45)
    beginnings = [random_prompt(length, 4500 + length) for length in (16, 48, 250, 256, 272, 400)]
    others = [random_prompt(length, 4600 + length) for length in (1, 15, 16, 31, 100, 128, 240)]
    prompts: list[str] = []
    while len(prompts) < MIXED_REQUESTS:
        parts = [draw.choice(beginnings), *draw.choices(others, k=draw.randint(0, 3))]
        words = " ".join(parts).split()
        if len(words) <= MIXED_TOKENS_MAX:
            prompts.append(" ".join(words))
    return [prompts[at : at + MIXED_AT_ONCE] for at in range(0, len(prompts), MIXED_AT_ONCE)]


def hits() -> list[str]:
    """A prompt, then others with its beginning in the cache: two passes are left, three, and two again."""
    first = random_prompt(HIT_TOKENS, 46).split()
    ends = [random_prompt(HIT_TOKENS, 460 + kept).split()[kept:] for kept in (256, 96, 400)]
    return [" ".join(first)] + [" ".join(first[: HIT_TOKENS - len(end)] + end) for end in ends]


EDITED_AT: Final = (159, 160, 161)
"""Around the end of a page."""


def pulled() -> list[str]:
    """A prompt, the same one going on, and for each place of an edit one that differs from there on."""
    words, others = random_prompt(720, 49).split(), random_prompt(720, 50).split()
    edited = [words[:at] + others[at:500] for at in EDITED_AT]
    return [" ".join(each) for each in (words[:400], words, *edited)]


def all_prompts() -> list[str]:
    drawn = [prompt for series in ALL for prompt in series.prompts()]
    mixed = [prompt for group in mixed_groups() for prompt in group]
    return list(dict.fromkeys([*drawn, *mixed, *hits(), *pulled()]))
