"""Values of all types that a client can bring into a request, and some that it cannot: a generator for fuzzing."""

from __future__ import annotations

import random
from typing import Any

LIMITS = (0, 1 << 8, 1 << 9, 1 << 16, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 1 << 64)


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def odd_values(seed: int) -> list[Any]:
    """The same values for the same seed, in another order for another."""
    randoms = random.Random(seed)
    numbers = [limit + off for limit in LIMITS for off in (-1, 0, 1)]
    texts = [
        *("", " ", "h", "1", "true", "null", "a\0b", "a\nb", "\r\n\r\n", "half \ud83d", "\ud83d\ude00", "é" * 300),
        *(
            "x" * 256,
            "x" * 257,
            "x" * 512,
            "x" * 513,
            "x" * 1_000_000,
            "h:1",
            "h:0",
            "h:65536",
            "h:1,",
            ",",
            "h:1,h",
            "[::1]:5",
        ),
        *(",".join(f"h{index}:1" for index in range(1024)), ",".join(f"h{index}:1" for index in range(1025))),
        *('","request":"1', "%s%d{}", "../../x", "-" * 100_000, "cmpl-" + "-1" * 100_000, "1_" * 100_000, "resp_" * 9),
    ]
    values: list[Any] = [None, True, False, 0.0, 1.0, 14579.0, 1.5, float("nan"), float("inf"), float("-inf")]
    values += [*numbers, *(-number for number in numbers), *texts, 10**400, 10**5000, b"bytes", (), (1,), {1}, object()]
    values += [[], {}, [None], ["h:1"], ["h:1"] * 8, ["h:1"] * 9, [["h:1"]], {"h": 1}, nested(50), {"a": nested(2000)}]
    randoms.shuffle(values)
    return values
