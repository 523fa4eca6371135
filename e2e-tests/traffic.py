"""Everyday traffic, drawn from a seed: groups that share a beginning, several answers, lists, clients that go away."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from prompts import FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE

DEFAULT_SEED: Final = 20_261_122
DEFAULT_REQUESTS: Final = 300
GROUP_MAX: Final = 4
CHOICES_MAX: Final = 3
LIST_MAX: Final = 3
PAGE_TOKENS: Final = 32
CHUNK_TOKENS: Final = 64
BEGINNING_TOKENS: Final = (20, 140)
"""From less than a page to four pages and three chunks."""
ENDING_TOKENS_MAX: Final = 50
AFTERWARDS_TOKENS: Final = 5
GONE: Final = 0.08
GONE_WITHIN_SECONDS: Final = 0.4
ANSWER_TOKENS: Final = 8


class Order(Enum):
    """In which order the legs of a request are sent."""

    SERIAL = "the decoder's with what the prefiller answered"
    TOGETHER = "both at once"
    DECODER_FIRST = "the decoder's, then the prefiller's"


@dataclass(frozen=True)
class Asked:
    """One request of a client."""

    number: int
    prompts: tuple[str, ...]
    choices: int
    prompt_logprobs: bool
    order: Order
    gone_after_seconds: float | None
    """When its client goes away, counted from when both legs are on their way; None: it stays."""

    def body(self) -> dict[str, Any]:
        """`top_k` 1 is greedy, and unlike temperature 0 allows several answers."""
        body: dict[str, Any] = {
            "prompt": list(self.prompts) if len(self.prompts) > 1 else self.prompts[0],
            "n": self.choices,
            "temperature": 1.0,
            "top_k": 1,
            "ignore_eos": True,
            "skip_special_tokens": False,
        }
        return body | ({"prompt_logprobs": 1} if self.prompt_logprobs else {})

    def described(self) -> str:
        kinds = [f"{len(prompt.split())} tokens" for prompt in self.prompts]
        return f"request {self.number}, {' and '.join(kinds)}, n={self.choices}, legs {self.order.value}" + (
            ", prompt_logprobs" if self.prompt_logprobs else ""
        )


@dataclass(frozen=True)
class Group:
    """Requests with a common beginning, sent at the same moment."""

    beginning: str
    requests: tuple[Asked, ...]

    def afterwards(self) -> str:
        """A prompt that a decoder answers with what it keeps of the beginning."""
        return f"{self.beginning} {words(AFTERWARDS_TOKENS, random.Random(self.beginning))}"


@dataclass(frozen=True)
class Traffic:
    """All requests of one run; the same seed and count give the same."""

    seed: int
    count: int

    @cached_property
    def groups(self) -> list[Group]:
        draw, found, number = random.Random(self.seed), [], 0
        while number < self.count:
            size = min(draw.randint(1, GROUP_MAX), self.count - number)
            beginning = words(draw.randint(*BEGINNING_TOKENS), draw)
            found.append(Group(beginning, tuple(asked(number + at, beginning, draw) for at in range(size))))
            number += size
        return found

    def prompts(self) -> list[str]:
        """Every prompt to be compared."""
        sent = [prompt for group in self.groups for request in group.requests for prompt in request.prompts]
        return [*sent, *(group.afterwards() for group in self.groups)]


def asked(number: int, beginning: str, draw: random.Random) -> Asked:
    """Most requests are plain; a fifth asks for several answers, an eighth is a list, a twelfth wants logprobs."""
    prompts = draw.randint(2, LIST_MAX) if draw.random() < 1 / 8 else 1
    return Asked(
        number,
        tuple(f"{beginning} {words(draw.randint(1, ENDING_TOKENS_MAX), draw)}" for _ in range(prompts)),
        draw.randint(2, CHOICES_MAX) if draw.random() < 1 / 5 else 1,
        draw.random() < 1 / 12,
        draw.choice(list(Order)),
        draw.uniform(0, GONE_WITHIN_SECONDS) if draw.random() < GONE else None,
    )


def sharing_beginning(seed: int, beginning: int, endings: Iterable[int]) -> list[str]:
    """A prompt for each ending, all with one beginning: so many tokens each, drawn from the seed."""
    draw = random.Random(seed)
    common = words(beginning, draw)
    return [f"{common} {words(ending, draw)}" for ending in endings]


def words(count: int, draw: random.Random) -> str:
    return " ".join(f"w{draw.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE)}" for _ in range(count))
