"""What happens in one story: its engines, its requests and its faults, all drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kv_connector.naming.pair_rules import Check
from kv_connector.sglang.pool_kinds import STATE, WINDOWED
from sglang_loop.network import Limits
from sglang_loop.ranks import EnginePlan

FAULTS = (
    *("link", "pause", "kill prefiller", "kill decoder", "die in a pass", "lose messenger", "hang fences"),
    *("no bootstrap server", "misplace", "refuse Announce", "refuse Computed", "refuse Step", "refuse StepEnded"),
    *("refuse PrefillEnded", "refuse Fetch", "refuse Abandon", "refuse Decline"),
    *("drop Granted", "drop Stopped", "drop Released", "drop Arrived", "drop Failed"),
)
BAD_ROOMS: Sequence[Any] = (0, -1, None, "7", 1 << 64)
BASE_PROMPTS = 3
WIDE_FROM = 100_000
"""From this seed on engines have what ``_widened`` draws too; those before mean what they did without it."""
UPDATED_FROM = 200_000
"""From this seed on engines are as those of the first seeds, and are given other weights meanwhile."""


@dataclass(eq=False)
class Ask:
    """A client's request: a leg at a prefiller and one at a decoder, in any order, or not both."""

    index: int
    room: Any
    prompt: list[int]
    prefiller: str
    decoder: str
    digests: tuple[str, str]
    """Of each leg; they differ where the two legs name different prompts."""
    rounds: dict[str, int]
    """When each leg comes; a leg that is missing never does."""
    aborts: list[tuple[int, str, bool]] = field(default_factory=list)
    """When a leg's client leaves, and whether another thread of the engine does it."""
    leaves_with_kv: bool = False
    """Its client leaves while it waits at the decoder with all its KV."""
    leg: str = ""
    ends: dict[str, str] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=lambda: {"prefill": [], "decode": []})
    declined_at: float | None = None
    """When its decoder, which knew the prefiller, had declined or abandoned it; None = it has not."""
    prefill_at: float = 0.0
    blame: str = ""
    """Why it may fail; "" = it must not."""
    ended_twice: bool = False
    dp_rank: int = 0
    """Of its prefiller's server."""
    updates: int = 0
    """How often weights were changed while it was under way."""
    had_other_weights: bool = False
    """Whether its engines once had weights unlike each other's, and so names."""

    @property
    def bootstrap(self) -> str:
        return f"{self.prefiller.partition('-')[0]}:8998"

    @property
    def first_token(self) -> int:
        return hash((*self.prompt, 11))

    def end(self, side: str, how: str) -> None:
        self.ended_twice |= side in self.ends
        self.ends[side] = how

    def declined(self, now: float) -> None:
        self.declined_at = now

    def note(self, side: str, sentence: str) -> None:
        self.notes[side].append(sentence)

    @property
    def is_over(self) -> bool:
        return len(self.ends) == len(self.rounds)

    def __str__(self) -> str:
        return f"ask {self.index} (room {self.room}, {len(self.prompt)} tokens, {self.prefiller} to {self.decoder})"


@dataclass(frozen=True)
class Story:
    seed: int
    limits: Limits
    prefillers: Sequence[EnginePlan]
    decoders: Sequence[EnginePlan]
    asks: Sequence[Ask]
    faults: Sequence[tuple[int, str, int]]
    """When, what, and a number that chooses where."""
    last_round: int
    share: float
    """How much of what is under way happens in a round."""
    skips: float
    """How often an engine's round is left out, or a request is polled once more."""
    proof_seconds: float = 0.0
    """How long no proof comes that a lost prefiller writes nothing more, unless it is dead."""
    otherwise: Mapping[str, str] = field(default_factory=dict)
    """The prefillers that compute another KV than the decoders, "always", or when they have "restarted"."""
    updates: Sequence[tuple[int, int | None]] = ()
    """When engines get other weights; all at once while they are paused, or this one before the others."""

    def describe(self) -> str:
        engines = "\n  ".join(str(each) for each in (*self.prefillers, *self.decoders))
        asks = "\n  ".join(f"{ask}: {ask.rounds}, aborts {ask.aborts}, digests {ask.digests}" for ask in self.asks)
        faults = ", ".join(f"{round_}: {kind} ({number})" for round_, kind, number in self.faults)
        return (
            f"seed {self.seed}: {self.limits}, share {self.share:.2f}, skips {self.skips:.2f},"
            f" proofs after {self.proof_seconds:g} s\n  {engines}\n  {asks}\n"
            f"  faults {faults or 'none'}, another KV {dict(self.otherwise) or 'nowhere'},"
            f" updates {list(self.updates)}"
        )


def draw(seed: int) -> Story:
    """The story of a seed: in turn one without a fault, with impatient clients, some faults, or links that break.

    In every tenth one engines end and come back.
    """
    drawn = random.Random(f"sglang loop {seed}")
    page_tokens = drawn.choice([1, 2, 4])
    prompt_pages_max = drawn.randint(2, 9)
    last_round = drawn.randint(20, 80)
    prefillers = [_engine(drawn, f"p{at}", page_tokens, prompt_pages_max) for at in range(drawn.randint(1, 4))]
    decoders = [_engine(drawn, f"d{at}", page_tokens, prompt_pages_max) for at in range(drawn.randint(1, 4))]
    turn = 4 if seed % 10 == 9 else seed % 4
    if turn == 3:  # what ranks do when another one fails
        prefillers = [replace(each, tp_size=2) for each in prefillers]
    if turn == 4:  # a pair meets before and after
        prefillers, decoders = prefillers[:1], decoders[:1]
    spoilt = (0.0, 0.5, 0.2, 0.1, 0.0)[turn]
    asks = _asks(drawn, prefillers, decoders, page_tokens * prompt_pages_max, last_round, spoilt)
    faults = _faults(drawn, turn, last_round)
    otherwise: dict[str, str] = {}
    updates: list[tuple[int, int | None]] = []
    if seed >= UPDATED_FROM:
        updates = _updates(seed, asks, last_round)
    elif seed >= WIDE_FROM:
        prefillers, decoders, otherwise = _widened(seed, prefillers, decoders, asks)
    return Story(
        seed=seed,
        limits=_limits(drawn),
        prefillers=prefillers,
        decoders=decoders,
        asks=asks,
        faults=sorted(faults),
        last_round=last_round,
        share=drawn.choice([0.05, 0.2, 0.5, 0.9]),
        skips=drawn.choice([0.0, 0.2, 0.6]),
        proof_seconds=random.Random(f"proofs of {seed}").choice([0.0, 0.0, 0.0, 600.0]),
        otherwise=otherwise,
        updates=updates,
    )


def _updates(seed: int, asks: Sequence[Ask], last_round: int) -> list[tuple[int, int | None]]:
    """A trainer's steps. Every prompt has a digest then, since weights are a part of it."""
    drawn = random.Random(f"updates of {seed}")
    for ask in asks:
        ask.digests = ask.digests if ask.digests[0] else (_digest(ask.prompt),) * 2
    alone = drawn.choice([0.0, 0.5, 1.0])
    rounds = sorted(drawn.randint(1, last_round) for _ in range(drawn.randint(1, 4)))
    return [(at, drawn.randint(0, 1 << 20) if drawn.random() < alone else None) for at in rounds]


def _digest(prompt: Sequence[int]) -> str:
    return f"{hash(tuple(prompt)):x}"


def _widened(
    seed: int, prefillers: Sequence[EnginePlan], decoders: Sequence[EnginePlan], asks: Sequence[Ask]
) -> tuple[list[EnginePlan], list[EnginePlan], dict[str, str]]:
    """The same story with second pools, checks of pairs and data-parallel ranks; draws of its own leave the rest."""
    drawn = random.Random(f"wide {seed}")
    beside, window_tokens = drawn.choice(["", "", WINDOWED, WINDOWED, STATE]), drawn.randint(1, 20)
    pools: dict[str, Any] = {"beside": beside, "window_tokens": window_tokens, "caches": False} if beside else {}
    check: Check = drawn.choice(["off", "fail", "fail"])
    of_servers, otherwise = [], {}
    for plan in prefillers:
        dp_size = drawn.choice([1, 1, 2])
        when = drawn.choice(["", "", "always", "restarted"]) if check == "fail" else ""
        names = [f"{plan.name}-{rank}" for rank in range(dp_size)] if dp_size > 1 else [plan.name]
        of_servers += [
            replace(plan, name=name, dp_rank=rank, dp_size=dp_size, **pools) for rank, name in enumerate(names)
        ]
        otherwise |= {name: when for name in names if when}
        for ask in [each for each in asks if each.prefiller == plan.name]:
            ask.dp_rank = ask.room % dp_size if isinstance(ask.room, int) else 0
            ask.prefiller = names[ask.dp_rank]
    running_max = drawn.choice([1, 1, 2, 100])
    for ask in [each for each in asks if each.prefiller in otherwise]:
        ask.leaves_with_kv = drawn.random() < 0.5
    return of_servers, [replace(each, check=check, running_max=running_max, **pools) for each in decoders], otherwise


def _limits(drawn: random.Random) -> Limits:
    unheard, grant_wait, silence = drawn.choice([8.0, 30.0]), drawn.choice([8.0, 30.0]), drawn.choice([1.0, 5.0])
    # As by default, a prompt waits several times as long as a decoder needs to learn that an address is old.
    return Limits(unheard=unheard, grant_wait=grant_wait, connect=min(5.0, grant_wait / 4), silence=silence)


def _faults(drawn: random.Random, turn: int, last_round: int) -> list[tuple[int, str, int]]:
    kinds = (
        ["pause"],
        ["pause"],
        drawn.sample(FAULTS, drawn.randint(1, 4)),
        ["link", "link", drawn.choice(FAULTS)],
        ["kill prefiller", "kill prefiller", "kill decoder", "die in a pass", "refuse Step"],
    )[turn]
    count = drawn.randint(5, 30) if turn == 3 else drawn.randint(turn // 4, 5)
    return [(drawn.randint(1, last_round), drawn.choice(kinds), drawn.randint(0, 1 << 20)) for _ in range(count)]


def _engine(drawn: random.Random, name: str, page_tokens: int, prompt_pages_max: int) -> EnginePlan:
    device = drawn.random() < 0.4
    return EnginePlan(
        name=name,
        tp_size=drawn.choice([1, 1, 2]),
        pages=prompt_pages_max + drawn.randint(0, drawn.choice([1, 3]) * prompt_pages_max),
        slots=drawn.randint(1, 8),
        page_tokens=page_tokens,
        caches=drawn.random() < 0.7,
        overlap=drawn.random() < 0.5 or device,
        chunk_tokens=page_tokens * drawn.randint(1, prompt_pages_max),
        early=drawn.random() < 0.5,
        layerwise=drawn.random() < 0.7,
        device=device,
        exits_when_lost=drawn.random() < 0.5,
        running_rounds=drawn.randint(0, 6),
    )


def _asks(
    drawn: random.Random,
    prefillers: Sequence[EnginePlan],
    decoders: Sequence[EnginePlan],
    tokens_max: int,
    last_round: int,
    spoilt: float,
) -> list[Ask]:
    bases = [[drawn.randint(1, 9) for _ in range(tokens_max)] for _ in range(BASE_PROMPTS)]
    has_digests = drawn.random() < 0.8
    reuses = drawn.choice([0.0, 0.0, 0.3, 0.8]) if has_digests else 0.0  # an id alone names one prompt at a time
    asks: list[Ask] = []
    for index in range(drawn.randint(2, 24)):
        prompt = _prompt(drawn, bases, tokens_max)
        room: Any = 100 + index
        if drawn.random() < reuses:
            room = 100 + drawn.randint(0, 3)
            if asks and drawn.random() < 0.3:
                prompt = list(asks[-1].prompt)
        digest = _digest(prompt) if has_digests else ""
        begun, late = drawn.randint(0, last_round), drawn.choice([0, 1, 5, 20])
        rounds = {"prefill": begun + drawn.randint(0, late), "decode": begun + drawn.randint(0, late)}
        names = drawn.choice(prefillers).name, drawn.choice(decoders).name
        ask = Ask(index, room, prompt, *names, (digest, digest), rounds)
        if drawn.random() < spoilt:
            _spoil(drawn, ask)
        asks.append(ask)
    return asks


def _prompt(drawn: random.Random, bases: Sequence[list[int]], tokens_max: int) -> list[int]:
    length = drawn.randint(1, tokens_max)
    shared = drawn.randint(0, length)
    return drawn.choice(bases)[:shared] + [drawn.randint(1, 9) for _ in range(length - shared)]


def _spoil(drawn: random.Random, ask: Ask) -> None:
    """What clients do to their own requests."""
    chance = drawn.random()
    if chance < 0.2:
        del ask.rounds[drawn.choice(["prefill", "decode"])]
        ask.blame = "a leg never comes"
    elif chance < 0.8:
        for side in drawn.sample(["prefill", "decode"], drawn.choice([1, 1, 2])):
            at = ask.rounds[side] + drawn.randint(0, 20)
            ask.aborts.append((at, side, side == "decode" and drawn.random() < 0.3))
        ask.blame = "its client leaves"
    elif chance < 0.9:
        ask.room, ask.blame = drawn.choice(BAD_ROOMS), "no room"
    elif ask.digests[0]:
        ask.digests, ask.blame = (ask.digests[0], "another"), "its legs name different prompts"
