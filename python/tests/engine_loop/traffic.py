"""What clients and routers send, drawn from a seed: a world is two engines and the asks that go to them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine_loop.engines import EnginePlan
from engine_loop.kv_pages import BLOCK_TOKENS, TOKENS_ONLY, VOCABULARY, Beside

GRANTS_AWAITED_ROUNDS = 60
UNREACHED_SECONDS = 86_400.0
"""A limit that no world reaches, however little time its process gets: what is held till then is found."""
OF_SESSIONS = ("fetch_limit_seconds", "connect_limit_seconds", "silence_limit_seconds")
BOTH, HANDED_ON, DECODER_FIRST, PLAIN = "both legs", "answer handed on", "decoder only", "plain"


def waits(seconds: float) -> dict[str, float]:
    """How long one leg waits for the other, whether or not its engine has heard of it: steps here may take seconds."""
    return {"grant_wait_seconds": seconds, "unheard_limit_seconds": seconds}


@dataclass
class Ask:
    """One HTTP request of a client, as the router sends it on."""

    name: str
    """What stands in X-Request-ID."""
    prompts: list[list[int]]
    route: str = BOTH
    goes_on: list[int] = field(default_factory=list)
    """What the decoder gets behind the prompt, of which there is one then."""
    choices: int = 1
    max_tokens: int = 4
    transfer_id: str | None = None
    prompt_logprobs: bool = False
    decode_leg_ahead: bool = False
    awaits_grants: bool = False
    """The prefiller's leg leaves when the decoder's has been granted pages, or cannot be soon."""
    leg_delay: int = 0
    """In rounds of the loop, between its two legs."""
    gone_after: int | None = None
    """The client goes away so many rounds after the first leg."""
    gone_from: str = "both"
    """Or from one leg only, "prefill" or "decode"."""
    may_fail: bool = False
    """The id is against the rules, or a leg was aborted."""
    beside: Beside = TOKENS_ONLY
    """Of each of its prompts."""
    rejected: bool = False
    """The decoder's API server rejects it: its engine only hears so."""
    occupies: str = ""
    """A plain request that keeps an engine, "P" or "D", busy."""
    side: str = "D"
    """The engine that gets a plain request."""
    may_log: bool = False
    """Errors in the log that name it are right, although it must be served."""


@dataclass
class WorldPlan:
    """One run from one seed."""

    kind: str
    seed: int
    prefiller: EnginePlan
    decoder: EnginePlan
    others: list[EnginePlan] = field(default_factory=list)
    """Engines beside these two, which get plain requests."""
    groups: list[list[Ask]] = field(default_factory=list)
    """The asks of a group arrive in the same round."""
    prefill_tokens_max: int = 1
    """How far the prefiller may decode on; routers ask it for one token."""
    open_groups: int = 3
    prefill_share: float = 0.5
    """Of the steps, how many are the prefiller's."""
    grants_awaited_rounds: float = GRANTS_AWAITED_ROUNDS
    """After so many the prefiller's leg leaves without: the decoder may have no room."""
    slow_pass_share: float = 0.2
    slow_pass_seconds: float = 0.001
    interleave_share: float = 0.3
    """Of the points inside a pass, at how many the other engine makes a step."""
    sleep_share: float = 0.0
    """The probability with which an engine falls asleep in a round."""
    sessions_end: bool = False
    """Engines end or are not there: limits of their sessions are waited for."""
    queue_seconds: float = 0.0
    """Occupied engines stay so for that long."""
    shortest_limit_seconds: float = math.inf
    """Asks that are open for so long may fail: a limit may have ended them, if this process had no core meanwhile."""

    @property
    def engines(self) -> tuple[EnginePlan, ...]:
        """All of them."""
        return (self.prefiller, self.decoder, *self.others)


class Traffic:
    """What a kind of traffic draws its world with."""

    def __init__(self, kind: str, seed: int, requests: int) -> None:
        self.random = random.Random(f"{kind} {seed}")
        self._requests = requests
        self._names = 0
        self._heads: list[list[int]] = []
        self.plan = WorldPlan(kind, seed, *self._engines())
        self.longest_prompt = self.plan.prefiller.model_tokens_max - 40

    # ---- engines

    def _engines(self) -> tuple[EnginePlan, EnginePlan]:
        draw = self.random
        longest = draw.choice([320, 512, 512, 1024, 2048])
        options = {"transports": draw.choice([["tcp"], ["shm", "tcp"]]), **waits(UNREACHED_SECONDS)}
        return (
            self._engine("P", "kv_producer", longest, options),
            replace(self._engine("D", "kv_consumer", longest, options), recompute=draw.random() < 0.2),
        )

    def _engine(self, name: str, role: str, longest: int, options: dict[str, Any]) -> EnginePlan:
        draw = self.random
        least = longest // BLOCK_TOKENS + 2
        tp_size = draw.choice([1, 1, 1, 2])
        if tp_size > 1:
            options = options | {"messenger_per": "rank"}
        return EnginePlan(
            name=name,
            kv_role=role,
            blocks=least + draw.choice([draw.randrange(least), 3 * least, 12 * least]),
            model_tokens_max=longest,
            chunk_tokens=draw.choice([64, 128, 256, 512, 2048]),
            requests_max=draw.choice([4, 16, 64]),
            prefix_caching=draw.random() < 0.7,
            overlapping=draw.random() < 0.4,
            whole_prompt_must_fit=draw.random() < 0.7,
            tp_size=tp_size,
            options=options,
        )

    def roomy(self, **changes: Any) -> None:
        """Pools in which this world's requests all have room."""
        for side in ("prefiller", "decoder"):
            engine: EnginePlan = getattr(self.plan, side)
            large = engine.model_tokens_max // BLOCK_TOKENS * 24
            setattr(self.plan, side, replace(engine, blocks=large, requests_max=64, **changes))

    def set(self, side: str, **changes: Any) -> None:
        """Changes one engine of the plan."""
        setattr(self.plan, side, replace(getattr(self.plan, side), **changes))

    def option(self, **changes: Any) -> None:
        """Changes options on both sides."""
        for side in ("prefiller", "decoder"):
            self.set(side, options=getattr(self.plan, side).options | changes)

    def may_outlive(self, wait_seconds: float, shortest_seconds: float | None = None) -> None:
        """Legs wait so long for each other, and what waits beside them for ``shortest_seconds``."""
        self.option(**waits(wait_seconds))
        self.plan.shortest_limit_seconds = shortest_seconds or wait_seconds

    # ---- prompts and ids

    def prompt(self, length: int | None = None) -> list[int]:
        """New tokens from the first one on."""
        draw = self.random
        if length is None:
            length = draw.choice([draw.randint(1, 40), draw.randint(1, self.longest_prompt // 2), self.longest_prompt])
        return [draw.randrange(VOCABULARY) for _ in range(min(length, self.longest_prompt))]

    def sharing(self) -> list[int]:
        """A prompt that begins as others do."""
        draw = self.random
        if len(self._heads) < 3 or draw.random() < 0.1:
            self._heads.append(self.prompt(draw.randint(1, self.longest_prompt - 20)))
        head = draw.choice(self._heads[-4:])
        cut = draw.choice([len(head), draw.randint(1, len(head))])
        return head[:cut] + self.prompt(draw.randint(1, min(60, self.longest_prompt - cut)))

    def forget_beginnings(self) -> None:
        """Later prompts begin as none before."""
        self._heads.clear()

    def name(self) -> str:
        """An id that no other ask has."""
        self._names += 1
        return f"{self.plan.kind}-{self.plan.seed}-{self._names}"

    def ask(self, **given: Any) -> Ask:
        """A both-legs ask, its legs in any order."""
        draw = self.random
        drawn = {
            "name": self.name(),
            "prompts": [self.sharing()],
            "max_tokens": draw.choice([1, 2, 3, 6, 20]),
            "decode_leg_ahead": draw.random() < 0.5,
            "awaits_grants": draw.random() < 0.4,
            "leg_delay": draw.choice([0, 0, 1, 5, 30]),
        }
        return Ask(**(drawn | given))

    # ---- the world

    def groups(self, make: Callable[[], list[Ask]]) -> None:
        """Groups until there are as many requests as were asked for."""
        count = 0
        while count < self._requests:
            group = make()
            self.plan.groups.append(group)
            count += sum(len(ask.prompts) * ask.choices for ask in group)
