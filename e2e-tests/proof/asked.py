"""What the pairs of both engines are asked when their computed KV is compared."""

from __future__ import annotations

import random

from prompts import random_prompt

LENGTHS = (40, 2, 5, 16, 17, 33, 64, 100, 127, 128, 129, 200, 256, 300, 513, 900)
"""The first one is long enough to refute a pair."""
TOKENS_MAX = 900
ANSWER_TOKENS = 8
AT_ONCE = 8


def prompts(count: int) -> tuple[list[str], list[str]]:
    """Those that are sent one by one, and those that are sent at once: half of these begin as one of the others."""
    draw = random.Random(31)
    first = [random_prompt(tokens, 1000 + index) for index, tokens in enumerate(LENGTHS[:count])]
    rest = []
    for index in range(count - len(first)):
        words = random_prompt(draw.randint(1, TOKENS_MAX), 2000 + index).split()
        shared = first[index % len(first)].split()
        rest.append(" ".join((shared[: len(words) // 2] + words)[: len(words)] if index % 2 else words))
    return first, rest
