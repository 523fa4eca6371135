"""Kinds of traffic with pulls: conversations whose turns go to any engine and name one that may hold their history."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine_loop.engines import Chunk, EnginePlan
from engine_loop.kv_pages import BLOCK_TOKENS, VOCABULARY, Beside
from engine_loop.traffic import BOTH, HANDED_ON, OF_SESSIONS, PLAIN, UNREACHED_SECONDS, Ask, Traffic, WorldPlan

OTHERS = ("S", "T")
HOLDER, EARLIER, ITSELF, DEAD, MUTE = "holder", "earlier holder", "itself", "dead", "mute"
"""What a message names, beside the engines: the one that had the last message, the one before that, its own, an address
at which nothing listens, and one that takes a connection and never answers."""
MALFORMED: tuple[object, ...] = (
    *(17, "10.0.0.7:1", [], {}, {"remote_host": 5, "remote_port": 1}, {"remote_host": "", "remote_port": 14579}),
    *({"remote_host": "127.0.0.1"}, {"remote_host": "127.0.0.1", "remote_port": True}),
    *({"remote_host": "127.0.0.1", "remote_port": 70_000}, {"remote_host": "127.0.0.1:1,", "remote_port": 1}),
    {"remote_host": "127.0.0.1:1,127.0.0.1:2", "remote_port": 1},
)
ASKED, OFFERED, FETCHING = "asked", "offered", "fetching"


@dataclass
class Turn(Ask):
    """A message of a conversation: its history, changed perhaps, and new text."""

    after: Turn | None = None
    text: list[int] = field(default_factory=list)
    changed_at: int | None = None
    """The token of the history that is another one than it was."""
    cut_at: int | None = None
    """The history ends here."""
    source: object = None
    """The engine that it names, or one of the words above, or a malformed hint."""
    named_on_decode: bool = False
    """The hint is also on the leg that fetches all of its prompt, where it is ignored."""
    gone_in: str = ""
    """The client goes away when its pull is in this state."""
    updated_in: str = ""
    """Its engine is given other weights when its pull is in this state."""
    source_ends_in: str = ""
    """The engine that it names ends when its pull is in this state."""
    levelled: bool = False
    """Before it comes, both of the others are given weights of one name."""


@dataclass
class PullPlan(WorldPlan):
    """A world with pulls."""

    counted: bool = False
    """No engine loses anything of its prefix cache, so each message's computed tokens are known."""
    reset_share: float = 0.0
    """The probability with which an engine's prefix cache is reset in a round."""
    update_share: float = 0.0
    """And that with which its workers get weights: those of a drafter, after which it goes on as before, or, if it only
    serves plain requests, the model's own, after which only engines with weights of that name compute what it does."""
    models_share: float = 0.2
    """Of those, how many are of the model itself."""
    together_share: float = 0.0
    """And of these, how many each of the others gets."""
    pause_share: float = 0.0
    """And that with which it stops for some rounds."""
    end_share: float = 0.0
    """And that with which one of the others ends."""


def _begin(t: Traffic, **changes: object) -> PullPlan:
    """Four engines that each may hold, pull, prefill and decode."""
    plan = t.plan = PullPlan(t.plan.kind, t.plan.seed, t.plan.prefiller, t.plan.decoder)
    draw = t.random
    longest = draw.choice([320, 512, 768])
    t.longest_prompt = longest - 40
    transports = plan.prefiller.options["transports"]

    def engine(old: EnginePlan, name: str) -> EnginePlan:
        least = longest // BLOCK_TOKENS + 2
        options = {
            "transports": transports,
            "pulls": draw.choice(["always", "always", "always", "auto"]),
            "pull_tokens_min": draw.choice([1, 16, 64]),
            "pull_pages_share": draw.choice([0.1, 0.5, 1.0]),
            "grant_wait_seconds": UNREACHED_SECONDS,
            "unheard_limit_seconds": UNREACHED_SECONDS,
        }
        common = {"kv_role": "kv_both", "tp_size": 1, "recompute": True, "prefix_caching": True}
        return replace(
            old,
            name=name,
            **common,
            options=options,
            model_tokens_max=longest,
            overlapping=draw.random() < 0.4,
            blocks=least + draw.choice([draw.randrange(least), 3 * least, 12 * least]),
            **changes,
        )

    plan.prefiller, plan.decoder = engine(plan.prefiller, "P"), engine(plan.decoder, "D")
    plan.others = [engine(plan.prefiller, name) for name in OTHERS]
    plan.open_groups = draw.choice([1, 2, 4, 8])
    return plan


def _turn(t: Traffic, after: Turn | None) -> Turn:
    draw = t.random
    route = draw.choice([PLAIN, PLAIN, PLAIN, BOTH, HANDED_ON])
    ask = t.ask(route=route, prompts=[[]], side=draw.choice(["P", "D", *OTHERS]), leg_delay=draw.choice([0, 0, 1, 5]))
    turn = Turn(**{**vars(ask), "after": after})
    length = draw.choice([1, 15, 16, 17, draw.randint(1, 60), draw.randint(1, t.longest_prompt // 3)])
    turn.text = t.prompt(length if after else max(length, draw.randint(1, t.longest_prompt // 2)))
    turn.source = draw.choice([None, HOLDER, HOLDER, HOLDER, HOLDER, EARLIER, "P", "D", *OTHERS, ITSELF])
    if after is not None and draw.random() < 0.25:
        edge = BLOCK_TOKENS * draw.randint(1, t.longest_prompt // BLOCK_TOKENS) + draw.choice([-1, 0, 1])
        if draw.random() < 0.5:
            turn.changed_at = edge
        else:
            turn.cut_at = edge
    turn.beside = after.beside if after else Beside(draw.choice(["", "", "one"]))
    if draw.random() < 0.1:
        turn.beside = Beside(draw.choice(["", "one", "other"]))
    turn.named_on_decode = draw.random() < 0.2
    return turn


def _conversation(t: Traffic) -> list[Turn]:
    """Some turns; some answer the same one at once, some go to two engines, of which one asks the other."""
    turns = [_turn(t, None)]
    for _ in range(t.random.choice([1, 3, 6])):
        after = t.random.choice(turns) if t.random.random() < 0.2 else turns[-1]
        turn = _turn(t, after)
        turns.append(turn)
        if t.random.random() < 0.2:
            first = turn.side if turn.route == PLAIN else "P"
            twin = replace(_turn(t, after), text=turn.text, cut_at=turn.cut_at, changed_at=turn.changed_at)
            twin.source, twin.beside = first, turn.beside
            turns.insert(-1, twin)
    return turns


def counted(t: Traffic) -> None:
    """Engines that lose nothing: a message computes what neither its engine nor the one it names holds, and no more."""
    plan = _begin(t, requests_max=64)
    plan.counted = True
    for each in plan.engines:
        each.options.update(
            pulls="always", pull_pages_share=1.0, offer_limit_seconds=UNREACHED_SECONDS, pull_tokens_min=16
        )
        each.options.update(dict.fromkeys(OF_SESSIONS, UNREACHED_SECONDS))
    plan.prefiller, plan.decoder, *plan.others = (
        replace(each, blocks=max(2_000, 24 * each.model_tokens_max // BLOCK_TOKENS)) for each in plan.engines
    )
    t.groups(lambda: list(_conversation(t)))


def troubled(t: Traffic) -> None:
    """Small pools, hints of every kind, clients that leave in every state, and engines that lose what they held."""
    plan = _begin(t)
    draw = t.random
    plan.sessions_end = True
    plan.end_share = draw.choice([0.0, 0.0, 0.002])
    plan.reset_share, plan.update_share, plan.pause_share = (draw.choice([0.0, 0.01, 0.05]) for _ in range(3))
    plan.prefiller, plan.decoder, *plan.others = (
        replace(each, requests_max=draw.choice([1, 2, 4, 16, 64]), whole_prompt_must_fit=draw.random() < 0.7)
        for each in plan.engines
    )
    for each in plan.engines:
        each.options["offer_limit_seconds"] = draw.choice([0.05, 3.0, 3.0])

    def group() -> list[Ask]:
        turns = _conversation(t)
        for turn in turns:
            turn.may_log = True  # a pull that fails is an error in the log, and the request is computed
            turn.source = draw.choice([turn.source] * 8 + [DEAD, MUTE, draw.choice(MALFORMED)])
            if draw.random() < 0.4:
                turn.may_fail = True
                turn.gone_in = draw.choice(["", ASKED, OFFERED, FETCHING, FETCHING])
                turn.gone_after = None if turn.gone_in else draw.choice([0, 1, 2, 3, draw.randrange(40)])
            if draw.random() < 0.1 and turn.route == PLAIN:
                turn.choices = draw.choice([2, 3])
        return list(turns)

    t.groups(group)


def updated(t: Traffic) -> None:
    """Two engines that are given the model's weights again and again, of few names, and named by each other's turns.

    Their caches are emptied behind most of the updates, other engines have what they had, and answers come late.
    """
    plan = _begin(t)
    draw = t.random
    plan.update_share, plan.models_share, plan.together_share = draw.choice([0.005, 0.01, 0.04]), 1.0, 0.7
    plan.reset_share = 0.01
    plan.pause_share = draw.choice([0.0, 0.01, 0.05])
    for each in plan.engines:
        each.options.update(pulls="always", pull_pages_share=1.0, pull_tokens_min=16)
    plan.prefiller, plan.decoder, *plan.others = (replace(each, blocks=2_000) for each in plan.engines)

    def group() -> list[Ask]:
        if draw.random() < 0.4:
            turns = _pair(t, PLAIN, side="T", updated_in=draw.choice([ASKED, ASKED, OFFERED, FETCHING]))
            turns[0].levelled = True
        else:
            turns = _conversation(t)
            for turn in turns:
                turn.route = draw.choice([PLAIN, PLAIN, PLAIN, turn.route])
                turn.side = draw.choice([*OTHERS, *OTHERS, turn.side])
        for turn in turns:
            turn.may_log = True
        return list(turns)

    t.groups(group)


def _pair(t: Traffic, route: str, *, at: str = "S", **second: object) -> list[Turn]:
    """A long prompt at one of the others, and a message behind it that pulls it from there."""
    first = replace(_turn(t, None), route=PLAIN, side=at, text=t.prompt(t.longest_prompt // 2), source=None)
    return [first, replace(_turn(t, first), route=route, source=HOLDER, cut_at=None, changed_at=None, **second)]


def left(t: Traffic) -> None:
    """Clients that go while their request fetches, and that is to be sent on: it ends once, and is reported once."""
    plan = _begin(t, requests_max=64)
    for each in plan.engines:
        each.options.update(pulls="always", pull_pages_share=1.0, pull_tokens_min=16)
    plan.prefiller, plan.decoder, *plan.others = (replace(each, blocks=2_000) for each in plan.engines)
    gone = {"gone_in": FETCHING, "may_fail": True, "may_log": True}
    t.groups(lambda: list(_pair(t, t.random.choice([BOTH, HANDED_ON]), **gone)))


def ended(t: Traffic) -> None:
    """The engine that is pulled from ends meanwhile: what has not arrived is computed."""
    plan = _begin(t, requests_max=64)
    for each in plan.engines:
        each.options.update(pulls="always", pull_pages_share=1.0, pull_tokens_min=16)
    plan.prefiller, plan.decoder, *plan.others = (replace(each, blocks=2_000) for each in plan.engines)

    def group() -> list[Ask]:
        at, side, state = (t.random.choice(each) for each in (OTHERS, "PD", (ASKED, OFFERED, FETCHING, FETCHING)))
        return list(_pair(t, PLAIN, at=at, side=side, source_ends_in=state, may_log=True))

    t.groups(group)


def evicted(t: Traffic) -> None:
    """An engine whose pool has room for two prompts, so that it uses each block again soon, is pulled from."""
    plan = _begin(t, requests_max=64)
    for each in plan.engines:
        each.options.update(pulls="always", pull_pages_share=1.0, pull_tokens_min=16)
    source = plan.others[0]
    plan.others[0] = replace(source, blocks=source.model_tokens_max // BLOCK_TOKENS + 3, whole_prompt_must_fit=False)
    plan.others[1] = replace(plan.others[1], blocks=2_000)
    plan.open_groups = 8
    t.groups(lambda: list(_pair(t, PLAIN, side="T")))


def twins(t: Traffic) -> None:
    """A prompt goes to two engines at once, and one asks the other, which has planned steps that are not begun."""
    plan = _begin(t, requests_max=64)
    for each in plan.engines:
        each.options.update(pulls="always", pull_pages_share=1.0, pull_tokens_min=16)
    plan.prefiller, plan.decoder, *plan.others = (
        replace(each, blocks=2_000, overlapping=True, chunk_tokens=64) for each in plan.engines
    )
    plan.pause_share = 0.3

    def group() -> list[Ask]:
        first, second = _pair(t, PLAIN, side="T", after=None)
        return [first, replace(second, text=first.text, beside=first.beside, source="S")]

    t.groups(group)


def ranks(t: Traffic) -> None:
    """Any of these, between engines of one or two ranks, of which each has a messenger or both have one."""
    t.random.choice([troubled, troubled, counted, left, evicted, twins])(t)
    plan = t.plan
    plan.prefiller, plan.decoder, *plan.others = (_ranked(t, each) for each in plan.engines)


def windows(t: Traffic) -> None:
    """The same, but for the counted kind, with layers that read a window or chunks: what these need moves."""
    draw = t.random
    draw.choice([troubled, troubled, left, evicted, twins])(t)
    one, other = (draw.choice([2, 15, 16, 18, 31, 32, 40, 48, 64, 100, 256]) for _ in range(2))
    if t.plan.seed % 5 == 0:  # vLLM puts no two windows into one group
        other = one
    chunk = Chunk(BLOCK_TOKENS * draw.choice([2, 3, 4, 16]))
    kinds: list[tuple[int | Chunk, ...]] = [
        (0, one, one),
        (0, 0, one),
        (0, one, other),
        (one, one, one),
        (0, chunk, chunk),
    ]
    layers = draw.choice(kinds)
    plan = t.plan
    plan.prefiller, plan.decoder, *plan.others = (
        replace(each, windows=layers, blocks=3 * each.blocks, one_group=plan.seed % 5 == 0) for each in plan.engines
    )
    if draw.random() < 0.3:
        plan.prefiller, plan.decoder, *plan.others = (_ranked(t, each) for each in plan.engines)


def _ranked(t: Traffic, engine: EnginePlan) -> EnginePlan:
    tp_size, per = t.random.choice([(1, "node"), (2, "rank"), (2, "rank"), (2, "node")])
    return replace(engine, tp_size=tp_size, options=engine.options | {"messenger_per": per})


def text_of(turn: Turn, history: list[int], longest: int) -> list[int]:
    """The turn's prompt; the history is dropped where it gets too long."""
    kept = history[: turn.cut_at]
    if turn.changed_at is not None and turn.changed_at < len(kept):
        kept = list(kept)
        kept[turn.changed_at] = (kept[turn.changed_at] + 1) % VOCABULARY
    return (kept if len(kept) + len(turn.text) <= longest else []) + turn.text
