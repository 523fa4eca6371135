"""Everyday traffic, drawn from a seed: shared beginnings, several at once, prompts asked again, clients that leave."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_engine.pair import ANSWER_LIMIT_SECONDS, Legs, Pair

Answer = Callable[[Sequence[int], int], list[int]]
"""What is right for a prompt and a number of tokens."""


@dataclass(frozen=True)
class Asked:
    prompt: tuple[int, ...]
    answer: int
    leaves: str = ""
    """From which side its client goes away: "p", "d" or both."""
    plain: bool = False
    """Sent to the decoder alone, which computes it."""


@dataclass
class Seen:
    """What came of it."""

    right: int = 0
    left: int = 0
    cached: Counter[str] = field(default_factory=Counter)
    """Tokens found in the prefix cache, by side."""
    wrong: list[str] = field(default_factory=list)


def everyday(seed: int, count: int, vocabulary: int) -> list[list[Asked]]:
    """Bursts of requests; each is sent when the one before has been answered."""
    drawn = random.Random(seed)

    def tokens(length: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(vocabulary) for _ in range(length))

    beginnings = [tokens(length) for length in (33, 64, 100)]
    asked: list[Asked] = []
    for index in range(count):
        again = asked and drawn.random() < 0.2
        beginning = drawn.choice(beginnings) if drawn.random() < 0.6 else ()
        prompt = drawn.choice(asked).prompt if again else beginning + tokens(drawn.randint(1, 90))
        leaves = drawn.choice(["p", "d", "pd"]) if index % 8 == 5 else ""
        asked.append(Asked(prompt, drawn.randint(1, 6), leaves, plain=index % 9 == 4))
    bursts = []
    while asked:
        size = drawn.randint(1, 6)
        bursts.append(asked[:size])
        asked = asked[size:]
    return bursts


def run(pair: Pair, bursts: Sequence[Sequence[Asked]], right: Answer) -> Seen:
    """Sends them and compares every answer."""
    seen = Seen()
    for burst in bursts:
        sent = [(each, (pair.ask_decoder if each.plain else pair.ask)(each.prompt, each.answer)) for each in burst]
        for each, legs in sent:
            for side in each.leaves if not each.plain else "":
                pair.abort(legs, side)
        for each, legs in sent:
            _judge(each, legs, right, seen)
    return seen


def _judge(asked: Asked, legs: Legs, right: Answer, seen: Seen) -> None:
    if legs.prefill is not None:
        seen.cached["prefiller"] += legs.prefill.result(ANSWER_LIMIT_SECONDS)["cached"]
    ended: dict[str, Any] = legs.decode.result(ANSWER_LIMIT_SECONDS)
    seen.cached["decoder"] += ended["cached"]
    if asked.leaves and ended["how"] != "FINISHED_LENGTH_CAPPED":
        seen.left += 1
    elif ended["how"] != "FINISHED_LENGTH_CAPPED":
        seen.wrong.append(f"{legs.name} ended as {ended['how']}")
    elif ended["tokens"] != right(asked.prompt, asked.answer):
        seen.wrong.append(f"{legs.name} answered {ended['tokens']}, expected {right(asked.prompt, asked.answer)}")
    else:
        seen.right += 1
