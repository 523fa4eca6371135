"""Kinds of traffic, each of which alone finds a finding of 2026-11-22 on the code of before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine_loop import conversations
from engine_loop.engines import STATE, Chunk, EnginePlan
from engine_loop.kv_pages import BLOCK_TOKENS, Beside
from engine_loop.traffic import (
    BOTH,
    DECODER_FIRST,
    HANDED_ON,
    OF_SESSIONS,
    PLAIN,
    UNREACHED_SECONDS,
    Ask,
    Traffic,
    WorldPlan,
    waits,
)

SHORT_GRANT_WAIT_SECONDS = 2.0
"""Longer than a first contact takes on a machine that is busy with other things."""
QUEUE_LIMITS = 3
"""A queue lasts so many times the grant wait."""

GOES_ON_MAX = 20
"""Of the 40 tokens behind the longest prompt; an answer has the others."""
ID_LENGTH_MAX = 512
"""A transfer id that is longer is refused where the router says it."""


def _beginnings(t: Traffic) -> None:
    """Prompts with a common beginning, sent at the same moment, and n > 1 (W1)."""
    t.roomy(prefix_caching=True)
    t.plan.slow_pass_share = 0.6

    def group() -> list[Ask]:
        t.forget_beginnings()
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
    t.option(**waits(SHORT_GRANT_WAIT_SECONDS))
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
    _abort(t, ("both", "both", "prefill", "decode"))
    # A grant that comes after the other leg alone was aborted waits: the id may be used again.
    t.may_outlive(4.0)


def _aborts_known(t: Traffic) -> None:
    """The same, and each decoder knows of it: no limit ends what is held."""
    _abort(t, ("both", "both", "decode"))


def _abort(t: Traffic, gone_from: Sequence[str]) -> None:
    t.set("prefiller", requests_max=2)

    def group() -> list[Ask]:
        ask = t.ask(route=t.random.choice([BOTH, BOTH, HANDED_ON]))
        if t.random.random() < 0.6:
            ask.gone_after = t.random.choice([0, 1, 2, t.random.randrange(60)])
            ask.gone_from = t.random.choice(gone_from)
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
    _reject(t, again_share=0.4)
    # After a rejection the prefiller's pages are held for a quarter of it; beside a second attempt, for all of it.
    t.may_outlive(8.0, shortest_seconds=8.0 / 4)


def _rejected_once(t: Traffic) -> None:
    """The same, and nothing is sent again: what is held longer than the 5 s after a rejection is held for ever."""
    _reject(t, again_share=0.0)


def _reject(t: Traffic, again_share: float) -> None:
    t.roomy()

    def group() -> list[Ask]:
        draw = t.random
        route = draw.choice([BOTH, BOTH, HANDED_ON])
        prompts = [t.sharing() for _ in range(draw.choice([1, 1, 2]))]
        ask = t.ask(route=route, prompts=prompts, choices=draw.choice([1, 1, 2]), rejected=True)
        if draw.random() < 0.3:
            ask.transfer_id = ask.name
        again = replace(ask, rejected=False, leg_delay=draw.choice([0, 5]))
        beside = t.ask(prompts=[list(prompts[0])])
        return [ask, *([again] if draw.random() < again_share else []), *([beside] if draw.random() < 0.4 else [])]

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


def _sleep(t: Traffic) -> None:
    """Engines fall asleep in any other traffic, one or both, and wake up again."""
    t.random.choice([_mixed, _mixed, _routes, _beginnings, _aborts])(t)
    # Else a decoder that waits with its sleep for a fetch may wait for a prefiller that waits for its queued requests.
    t.roomy()
    # What was computed for a decoder that slept through its fetch is held for as long.
    t.may_outlive(8.0)
    t.plan.sleep_share = t.random.choice([0.003, 0.02])


def _goes_on(t: Traffic) -> None:
    """In any other traffic the decoder's prompts go on behind the prefiller's, which end anywhere in a block."""
    draw = t.random
    draw.choice([_mixed, _mixed, _routes, _preemption, _windows, _states, _aborts])(t)
    for ask in (each for group in t.plan.groups for each in group):
        if len(ask.prompts) > 1 or ask.route == PLAIN or draw.random() < 0.2:
            continue
        (prompt,) = ask.prompts
        if draw.random() < 0.6:
            at_boundary = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS + draw.choice([-1, 0, 1])
            ask.prompts = [prompt[: max(1, at_boundary)]]
        ask.goes_on = t.prompt(draw.choice([1, 1, 2, GOES_ON_MAX]))
        ask.max_tokens = min(ask.max_tokens, GOES_ON_MAX)


def _hold_lists(plan: WorldPlan) -> None:
    """A router hands on an answer when the prefiller has computed, and holds, all of its prompts and choices.

    Those of asks that are open at once must all have room; where they might not, each has one prompt and one choice.
    """
    asks_at_once = plan.open_groups * max(map(len, plan.groups), default=0)
    kv_groups = len(set(plan.prefiller.windows))
    for ask in (each for group in plan.groups for each in group):
        held_blocks = sum(len(prompt) // BLOCK_TOKENS + 1 for prompt in ask.prompts) * ask.choices
        if ask.route == HANDED_ON and held_blocks * kv_groups * asks_at_once > plan.prefiller.blocks:
            ask.prompts, ask.choices = ask.prompts[:1], 1


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
    "aborts-known": _aborts_known,
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
    "rejected-once": _rejected_once,
    "sleep": _sleep,
    "goes-on": _goes_on,
    "pulls": conversations.troubled,
    "pulls-counted": conversations.counted,
    "pulls-left": conversations.left,
    "pulls-ended": conversations.ended,
    "pulls-evicted": conversations.evicted,
    "pulls-twins": conversations.twins,
    "pulls-ranks": conversations.ranks,
    "pulls-updated": conversations.updated,
    "pulls-windows": conversations.windows,
}


def world_of(kind: str, seed: int, requests: int) -> WorldPlan:
    """The whole plan of a world."""
    traffic = Traffic(kind, seed, requests)
    KINDS[kind](traffic)
    _hold_lists(traffic.plan)
    if not (traffic.plan.sleep_share or traffic.plan.sessions_end):  # no limit is waited for after a session's end
        traffic.option(**dict.fromkeys(OF_SESSIONS, UNREACHED_SECONDS))
    return traffic.plan
