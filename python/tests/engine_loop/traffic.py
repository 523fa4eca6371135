"""What clients and routers send, drawn from a seed: a world is two engines and the asks that go to them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine_loop.engines import STATE, Chunk, EnginePlan
from engine_loop.kv_pages import BLOCK_TOKENS, TOKENS_ONLY, VOCABULARY, Beside

GRANT_WAIT_SECONDS = 60.0
"""Longer than anything takes here: what is held for so long, and need not be, is found."""
SHORT_GRANT_WAIT_SECONDS = 2.0
"""Longer than a first contact takes on a machine that is busy with other things."""
QUEUE_LIMITS = 3
"""A queue lasts so many times the grant wait."""

ID_LENGTH_MAX = 512
"""A transfer id that is longer is refused where the router says it."""

BOTH, HANDED_ON, DECODER_FIRST, PLAIN = "both legs", "answer handed on", "decoder only", "plain"


def _waits(seconds: float) -> dict[str, float]:
    """How long one leg waits for the other, whether or not its engine has heard of it: steps here may take seconds."""
    return {"grant_wait_seconds": seconds, "unheard_limit_seconds": seconds}


@dataclass
class Ask:
    """One HTTP request of a client, as the router sends it on."""

    name: str
    """What stands in X-Request-ID."""
    prompts: list[list[int]]
    route: str = BOTH
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


@dataclass
class WorldPlan:
    """One run from one seed."""

    kind: str
    seed: int
    prefiller: EnginePlan
    decoder: EnginePlan
    groups: list[list[Ask]] = field(default_factory=list)
    """The asks of a group arrive in the same round."""
    prefill_tokens_max: int = 1
    """How far the prefiller may decode on; routers ask it for one token."""
    open_groups: int = 3
    prefill_share: float = 0.5
    """Of the steps, how many are the prefiller's."""
    slow_pass_share: float = 0.2
    slow_pass_seconds: float = 0.001
    interleave_share: float = 0.3
    """Of the points inside a pass, at how many the other engine makes a step."""
    queue_seconds: float = 0.0
    """Occupied engines stay so for that long."""


class Traffic:
    """Draws a world of a kind."""

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
        options = {"transports": draw.choice([["tcp"], ["shm", "tcp"]]), **_waits(GRANT_WAIT_SECONDS)}
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

    def world(self) -> WorldPlan:
        """The whole plan."""
        KINDS[self.plan.kind](self)
        return self.plan

    def groups(self, make: Callable[[], list[Ask]]) -> None:
        """Groups until there are as many requests as were asked for."""
        count = 0
        while count < self._requests:
            group = make()
            self.plan.groups.append(group)
            count += sum(len(ask.prompts) * ask.choices for ask in group)


# ---- kinds of traffic, each of which alone finds a finding of 2026-11-22 on the code of before


def _beginnings(t: Traffic) -> None:
    """Prompts with a common beginning, sent at the same moment, and n > 1 (W1)."""
    t.roomy(prefix_caching=True)
    t.plan.slow_pass_share = 0.6

    def group() -> list[Ask]:
        t._heads.clear()
        ahead = t.random.random() < 0.7
        one = {"decode_leg_ahead": ahead, "awaits_grants": ahead, "leg_delay": 0}
        head = t.prompt(t.random.randint(BLOCK_TOKENS, t.longest_prompt - 30))
        asks = [t.ask(prompts=[head + t.prompt(t.random.randint(1, 30))], **one) for _ in range(t.random.randint(1, 4))]
        asks[0].choices = t.random.choice([1, 2, 3])
        return asks

    t.groups(group)


def _same_id(t: Traffic) -> None:
    """Two clients use one X-Request-ID at once, for prompts of the same length (W2)."""
    t.roomy()

    def group() -> list[Ask]:
        name, length = t.name(), t.random.randint(17, t.longest_prompt)
        return [t.ask(name=name, prompts=[t.prompt(length)]) for _ in range(2)] + [t.ask()]

    t.groups(group)


def _retried(t: Traffic) -> None:
    """A prompt is sent again under its id while the first request still runs, beside another prompt."""
    t.roomy()

    def group() -> list[Ask]:
        draw = t.random
        name, prompt = t.name(), t.sharing()
        route = draw.choice([BOTH, BOTH, DECODER_FIRST])
        asks = [t.ask(name=name, prompts=[prompt], route=route) for _ in range(draw.choice([2, 2, 3]))]
        return [*asks, t.ask(name=name)] if route == BOTH else asks

    t.groups(group)


def _queue(t: Traffic, side: str) -> None:
    """Requests wait in an engine's queue for three times the grant wait (A2)."""
    t.roomy()
    t.option(**_waits(SHORT_GRANT_WAIT_SECONDS))
    t.plan.queue_seconds = QUEUE_LIMITS * SHORT_GRANT_WAIT_SECONDS
    t.set("prefiller" if side == "P" else "decoder", requests_max=1)
    t.plan.open_groups = 1000
    occupant = t.ask(route=PLAIN, occupies=side, prompts=[t.prompt(8)], max_tokens=t.plan.decoder.model_tokens_max - 9)
    t.plan.groups.append([occupant])
    t.groups(lambda: [t.ask(leg_delay=0, awaits_grants=False, prompts=[t.prompt(40)])])


def _prefiller_queue(t: Traffic) -> None:
    _queue(t, "P")


def _decoder_queue(t: Traffic) -> None:
    _queue(t, "D")


def _reused_id(t: Traffic) -> None:
    """An id is used again, by the same prompt or another, when the first request has ended (A3)."""
    t.roomy()
    t.plan.open_groups = 1
    names = [t.name() for _ in range(3)]

    def group() -> list[Ask]:
        name = t.random.choice(names)
        named = {"name": name} if t.random.random() < 0.5 else {"transfer_id": name}
        return [t.ask(decode_leg_ahead=t.random.random() < 0.7, **named)]

    t.groups(group)


def _logprobs(t: Traffic) -> None:
    """Requests with prompt_logprobs: vLLM loads nothing for them (A5)."""
    t.roomy()
    t.groups(lambda: [t.ask(prompt_logprobs=t.random.random() < 0.5, route=t.random.choice([BOTH, HANDED_ON]))])


def _aborts(t: Traffic) -> None:
    """Clients go away in every state, from both legs or one (A6)."""
    t.set("prefiller", requests_max=2)
    # A grant that comes after the other leg was aborted waits: the id may be used again.
    t.option(**_waits(4.0))

    def group() -> list[Ask]:
        ask = t.ask(route=t.random.choice([BOTH, BOTH, HANDED_ON]))
        if t.random.random() < 0.6:
            ask.gone_after = t.random.choice([0, 1, 2, t.random.randrange(60)])
            ask.gone_from = t.random.choice(["both", "both", "prefill", "decode"])
            ask.may_fail = True
        return [ask]

    t.plan.open_groups = 8
    t.groups(group)


def _crossed(t: Traffic) -> None:
    """Pools of a few prompts, and legs that arrive in another order on each side (A7)."""
    least = t.plan.prefiller.model_tokens_max // BLOCK_TOKENS + 2
    for side in ("prefiller", "decoder"):
        t.set(side, blocks=least + t.random.randrange(4), requests_max=16)
    t.plan.open_groups = 6
    length = t.longest_prompt * 2 // 3

    def group() -> list[Ask]:
        first, second = ({"leg_delay": delay, "awaits_grants": False} for delay in (4, 4))
        return [
            t.ask(prompts=[t.prompt(t.random.randint(length // 2, length))], decode_leg_ahead=False, **first),
            t.ask(prompts=[t.prompt(t.random.randint(length // 2, length))], decode_leg_ahead=True, **second),
        ]

    t.groups(group)


def _rejected(t: Traffic) -> None:
    """The decoder's API server rejects requests, and the router may send them again; others have the same prompts."""
    t.roomy()
    # After a rejection the prefiller's pages are held for a quarter of it.
    t.option(**_waits(8.0))

    def group() -> list[Ask]:
        draw = t.random
        route = draw.choice([BOTH, BOTH, HANDED_ON])
        prompts = [t.sharing() for _ in range(draw.choice([1, 1, 2]))]
        ask = t.ask(route=route, prompts=prompts, choices=draw.choice([1, 1, 2]), rejected=True)
        if draw.random() < 0.3:
            ask.transfer_id = ask.name
        again = replace(ask, rejected=False, leg_delay=draw.choice([0, 5]))
        beside = t.ask(prompts=[list(prompts[0])])
        return [ask, *([again] if draw.random() < 0.4 else []), *([beside] if draw.random() < 0.4 else [])]

    t.groups(group)


def _children(t: Traffic) -> None:
    """n > 1 and lists of prompts, by every route (A8)."""
    t.roomy()

    def group() -> list[Ask]:
        draw = t.random
        ask = t.ask(route=draw.choice([BOTH, HANDED_ON, HANDED_ON]))
        ask.choices = draw.choice([1, 2, 3])
        ask.prompts = [t.sharing() for _ in range(draw.choice([1, 2, 3]))]
        if draw.random() < 0.3:
            ask.transfer_id = ask.name
        return [ask]

    t.groups(group)


def _long_ids(t: Traffic) -> None:
    """Ids of 600 characters beside ordinary ones (A4)."""
    t.roomy()

    def group() -> list[Ask]:
        return [t.ask(name=t.name() + "x" * 600, may_fail=True), t.ask(), t.ask()]

    t.groups(group)


def _routes(t: Traffic) -> None:
    """Every route at once, with room for all."""
    t.roomy()
    t.plan.open_groups = t.random.choice([1, 3, 8, 16])

    def group() -> list[Ask]:
        asks = [_any(t) for _ in range(t.random.choice([1, 1, 2, 4]))]
        for ask in asks:
            _stays(ask)
        return asks

    t.groups(group)


def _tenants(t: Traffic) -> None:
    """Prompts of the same tokens with other salts, adapters and images, at once and one after the other."""
    t.roomy()
    t.plan.open_groups = t.random.choice([1, 3, 8])

    def group() -> list[Ask]:
        asks = [_any(t) for _ in range(t.random.choice([1, 2, 4]))]
        for ask in asks:
            _stays(ask)
            ask.prompts = [list(asks[0].prompts[0]) for _ in ask.prompts]
            ask.beside = _beside(t, len(ask.prompts[0]), ask.route)
        return asks

    t.groups(group)


def _beside(t: Traffic, prompt_tokens: int, route: str) -> Beside:
    draw = t.random
    salt = draw.choice(["", "one", "other"])
    if route == DECODER_FIRST:
        return Beside(salt)  # what goes by way of the decoder is tokens and a salt; more is refused
    images, at = [], 0
    while draw.random() < 0.5 and at < prompt_tokens:
        offset = draw.randint(at, prompt_tokens - 1)
        length = draw.randint(1, min(100, prompt_tokens - offset))
        images.append((offset, length, f"{draw.choice(['cat', 'dog'])} of {length}"))  # one picture has one length
        at = offset + length
    return Beside(salt, draw.choice(["", "", "terse", "verse"]), tuple(images))


def _preemption(t: Traffic) -> None:
    """One pool is nearly full: its engine preempts, and starts the requests again."""
    full = t.random.choice(["prefiller", "decoder"])
    t.roomy()
    least = t.longest_prompt // BLOCK_TOKENS + 5
    t.set(full, blocks=least + t.random.randrange(least), whole_prompt_must_fit=False)
    t.plan.open_groups = 12
    t.groups(lambda: [t.ask(max_tokens=t.random.choice([4, 36]), route=t.random.choice([HANDED_ON, HANDED_ON, BOTH]))])


def _windows(t: Traffic) -> None:
    """One layer of three, two or all read a window of the last tokens, so that there are one to three groups.

    Any other traffic. A world in five has one group.
    """
    draw = t.random
    one, other = (draw.choice([1, 2, 15, 16, 17, 18, 31, 32, 33, 40, 48, 64, 100, 256]) for _ in range(2))
    if t.plan.seed % 5 == 0:  # vLLM puts no two windows into one group
        other = one
    _grouped(t, draw.choice([(0, one, one), (0, 0, one), (0, one, other), (one, one, one), (one, other, other)]))


def _chunks(t: Traffic) -> None:
    """One layer of three, or two, read the tokens of their chunk; any other traffic. A world in five has one group."""
    draw = t.random
    chunk = Chunk(BLOCK_TOKENS * draw.choice([1, 2, 3, 4, 16]))
    _grouped(t, draw.choice([(0, chunk, chunk), (0, 0, chunk)]))


def _grouped(t: Traffic, windows: tuple[int | Chunk, ...]) -> None:
    t.random.choice([_beginnings, _preemption, _crossed, _routes, _aborts, _mixed, _mixed])(t)
    for side in ("prefiller", "decoder"):
        blocks = getattr(t.plan, side).blocks
        t.set(side, windows=windows, blocks=3 * blocks, one_group=t.plan.seed % 5 == 0)
    t.plan.prefill_tokens_max = t.random.choice([1, 40])


def _states(t: Traffic) -> None:
    """A layer or two keep a state, of which each request has one slot; the others have a window, in half of the worlds.

    Without prefix caching, as vLLM wants it, and with one rank or two, as many on both sides.
    """
    draw = t.random
    tight = draw.random() < 0.4
    kind = draw.choice(["SHORT_CONV", "MAMBA2", "GDN_ATTN"])
    window = draw.choice([2, 15, 16, 17, 18, 31, 32, 33, 64, 100, 256]) if draw.random() < 0.5 else 0
    windows = draw.choice([(window, STATE, STATE), (window, window, STATE)])
    if not tight:
        t.roomy()
    ranks = 2 if t.plan.seed % 4 == 3 else 1
    for side in ("prefiller", "decoder"):
        engine: EnginePlan = getattr(t.plan, side)
        options = engine.options | {"messenger_per": "rank" if ranks > 1 else "node"}
        t.set(side, windows=windows, state_type=kind, prefix_caching=False, tp_size=ranks, options=options)
        t.set(side, blocks=engine.blocks + 80)
    t.plan.open_groups = draw.choice([1, 3, 8])

    def group() -> list[Ask]:
        asks = [_any(t) for _ in range(draw.choice([1, 2, 4]))]
        for ask in asks:
            if ask.route == DECODER_FIRST:
                ask.route = BOTH
            if tight and ask.route == HANDED_ON:
                ask.prompts = ask.prompts[:1]  # a list is handed on when the prefiller has computed and holds all of it
        return asks

    t.groups(group)


def _mixed(t: Traffic) -> None:
    """Everything at once."""
    t.plan.open_groups = t.random.choice([1, 3, 8, 16])
    t.plan.prefill_share = t.random.choice([0.2, 0.5, 0.8])
    t.plan.slow_pass_share = t.random.choice([0.05, 0.3])

    def group() -> list[Ask]:
        return [_any(t) for _ in range(t.random.choice([1, 1, 2, 4]))]

    t.groups(group)


def _stays(ask: Ask) -> None:
    """Its client does not go; only an id against the rules may fail it."""
    ask.gone_after, ask.may_fail = None, len(ask.name) > ID_LENGTH_MAX


def _any(t: Traffic) -> Ask:
    draw = t.random
    ask = t.ask(route=draw.choice([BOTH, BOTH, BOTH, HANDED_ON, DECODER_FIRST, PLAIN]))
    if draw.random() < 0.15 and ask.route != DECODER_FIRST:
        ask.choices = draw.choice([2, 3])
    if draw.random() < 0.1 and ask.route != DECODER_FIRST:
        ask.prompts = [t.sharing() for _ in range(draw.choice([2, 3]))]
    if draw.random() < 0.1:
        ask.prompt_logprobs = True
    if draw.random() < 0.15:
        ask.gone_after, ask.may_fail = draw.choice([0, 1, 3, draw.randrange(50)]), True
        ask.gone_from = draw.choice(["both", "both", "decode"])
    if draw.random() < 0.02:
        ask.name, ask.may_fail = ask.name + "x" * 600, True
    if draw.random() < 0.1 and ask.route in (BOTH, HANDED_ON):
        ask.transfer_id = ask.name
    return ask


KINDS: dict[str, Callable[[Traffic], None]] = {
    "beginnings": _beginnings,
    "same-id": _same_id,
    "prefiller-queue": _prefiller_queue,
    "decoder-queue": _decoder_queue,
    "reused-id": _reused_id,
    "logprobs": _logprobs,
    "aborts": _aborts,
    "crossed": _crossed,
    "children": _children,
    "long-ids": _long_ids,
    "routes": _routes,
    "tenants": _tenants,
    "preemption": _preemption,
    "mixed": _mixed,
    "windows": _windows,
    "chunks": _chunks,
    "states": _states,
    "retried": _retried,
    "rejected": _rejected,
}
