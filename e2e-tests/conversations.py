"""Conversations that move between engines which pull from each other; each answer is compared with a plain server's.

A message goes to a prefiller and the decoder, or to one engine alone. It names an engine that may have the history, or
none. Histories are edited, clients leave, and a conversation may have a salt. An answer may be missing only where the
engine that gives it was killed meanwhile, or the client left.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from bed import PREFILL_LEG, Messenger, decode_leg
from faults import Outcome, attempt, body_of, leave
from prompts import FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE
from pulls_bed import ANSWER_TOKENS, source_of
from server_process import Server, complete, greedy_completion

TURNS: Final = 5
FIRST_TOKENS: Final = (20, 400)
NEW_TOKENS: Final = (1, 90)
ALONE_SHARE: Final = 0.3
EDITED_SHARE: Final = 0.15
LEFT_SHARE: Final = 0.1
SALTED_SHARE: Final = 0.2
RESET_SHARE: Final = 0.05
NO_SOURCE_SHARE: Final = 0.1
LEFT_AFTER_SECONDS: Final = 0.3
UP_LIMIT_SECONDS: Final = 600.0


@dataclass
class Engine:
    """One that may be killed; how often it was says which answers may be missing."""

    messenger: Messenger
    deaths: int = 0
    up: threading.Event = field(default_factory=threading.Event)
    """Cleared while it is dead."""

    @property
    def server(self) -> Server:
        return self.messenger.server

    @property
    def name(self) -> str:
        return self.messenger.server.name


@dataclass(frozen=True)
class Turn:
    """One prompt and its way."""

    prompt: str
    salt: str
    asker: Engine
    decoder: Engine | None
    """None: the asker answers alone."""
    source: Engine | None
    left: threading.Event | float | None = None
    """When its client leaves: when this is set, or after so many seconds. None: it stays."""
    tokens: int = ANSWER_TOKENS

    def described(self) -> str:
        source, decoder = (each.name if each is not None else "none" for each in (self.source, self.decoder))
        return f"{len(self.prompt.split())} tokens at {self.asker.name}, decoder {decoder}, source {source}"

    def answers(self) -> Engine:
        """The one whose answer the client gets: it comes whatever happens to the others."""
        return self.decoder or self.asker

    def engines(self) -> list[Engine]:
        return [self.asker, *([self.decoder] if self.decoder is not None else [])]


@dataclass
class Seen:
    """What came of the messages."""

    counted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, result: str, fault: str = "") -> None:
        with self._lock:
            self.counted[result] += 1
            if fault:
                self.faults.append(fault)
                print(f"FAULT {fault}", flush=True)


class Comparison:
    """Sends messages and compares their answers with those of a plain server."""

    def __init__(self, plain: Server, seen: Seen) -> None:
        self._plain = plain
        self.seen = seen

    def right(self, turn: Turn) -> Outcome:
        return attempt(complete, self._plain, turn.prompt, turn.tokens)

    def answer(self, turn: Turn) -> list[str] | None:
        """The answer, if there is one, which is compared."""
        answers = turn.answers()
        deaths = answers.deaths
        for engine in turn.engines():
            engine.up.wait(UP_LIMIT_SECONDS)
        outcome = self.sent(turn)
        return self.compared(turn, outcome, died=deaths != answers.deaths)

    def compared(
        self, turn: Turn, outcome: Outcome, *, died: bool, before: list[str] | None = None
    ) -> list[str] | None:
        """``before``: what is right too, where the weights were others when it was asked."""
        if outcome.failed:
            if turn.left is not None:
                self.seen.add("left")
            elif died:
                self.seen.add("engine killed")
            else:
                self.seen.add("missing", f"no answer: {turn.described()}: {outcome.detail}")
            return None
        right = self.right(turn)
        if right.failed:
            self.seen.add("missing", f"the plain server does not answer: {right.detail}")
            return None
        if outcome.words not in (right.words, before):
            self.seen.add("wrong", f"wrong: {turn.described()}: {outcome.words}, expected {right.words}")
            return None
        self.seen.add("right")
        return outcome.words

    def sent(self, turn: Turn) -> Outcome:
        """Both legs at once, or the only one."""
        request = f"stress-{uuid.uuid4()}"
        source = source_of(turn.source.messenger) if turn.source is not None else {}
        if turn.decoder is None:
            return self._leg(turn, turn.asker, source, turn.tokens, request)
        with ThreadPoolExecutor(1) as other:
            first = other.submit(self._leg, turn, turn.asker, {**PREFILL_LEG, **source}, 1, request)
            leg = decode_leg(turn.asker.messenger, request)
            outcome = self._leg(turn, turn.decoder, leg, turn.tokens, request)
            first.result()
            return outcome

    def _leg(self, turn: Turn, engine: Engine, leg: dict[str, Any], tokens: int, request: str) -> Outcome:
        salt = {"cache_salt": turn.salt} if turn.salt else {}
        if turn.left is None:
            body = {**greedy_completion(turn.prompt, tokens), "kv_transfer_params": leg, **salt}
            return attempt(engine.server.post, "/v1/completions", body, {"X-Request-Id": request})
        body = {**body_of(turn.prompt, tokens, leg, stream=False), **salt}
        return attempt(left, engine.server, body, request, turn.left)


def left(server: Server, body: dict[str, Any], request: str, until: threading.Event | float) -> dict[str, Any]:
    """A client that leaves, so there is no answer."""
    leave(
        server,
        body,
        request,
        until.wait if isinstance(until, threading.Event) else partial(threading.Event().wait, until),
    )
    return {}


def words(count: int, draw: random.Random) -> list[str]:
    return [f"w{draw.randrange(FIRST_ORDINARY_TOKEN, VOCABULARY_SIZE)}" for _ in range(count)]


class Conversations:
    """Conversations that go on, one after the other, until they are to end. All is drawn from the seed."""

    def __init__(self, comparison: Comparison, prefillers: list[Engine], decoder: Engine, seed: str) -> None:
        self._comparison = comparison
        self._prefillers = prefillers
        self._decoder = decoder
        self._draw = random.Random(seed)
        self._ends = threading.Event()

    def run(self) -> None:
        while not self._ends.is_set():
            self._one()

    def end(self) -> None:
        """After the message under way."""
        self._ends.set()

    def _one(self) -> None:
        draw = self._draw
        history = words(draw.randint(*FIRST_TOKENS), draw)
        salt = draw.choice(["a", "b"]) if draw.random() < SALTED_SHARE else ""
        for _ in range(TURNS):
            if self._ends.is_set():
                return
            turn = self._turn(" ".join(history), salt)
            answer = self._comparison.answer(turn)
            history += [*(answer or []), *words(draw.randint(*NEW_TOKENS), draw)]
            if draw.random() < EDITED_SHARE:
                history[draw.randrange(len(history))] = words(1, draw)[0]
            if draw.random() < RESET_SHARE:
                attempt(draw.choice([*self._prefillers, self._decoder]).server.post, "/reset_prefix_cache", {})

    def _turn(self, prompt: str, salt: str) -> Turn:
        draw, every = self._draw, [*self._prefillers, self._decoder]
        alone = draw.random() < ALONE_SHARE
        asker = draw.choice(every if alone else self._prefillers)
        source = None if draw.random() < NO_SOURCE_SHARE else draw.choice(every)
        left = draw.uniform(0, LEFT_AFTER_SECONDS) if draw.random() < LEFT_SHARE else None
        return Turn(prompt, salt, asker, None if alone else self._decoder, source, left)


class Beside:
    """Conversations of several clients while something is done to the engines."""

    def __init__(self, conversations: list[Conversations]) -> None:
        self._conversations = conversations
        self._pool = ThreadPoolExecutor(len(conversations))
        self._running: list[Future[None]] = []

    def __enter__(self) -> None:
        self._running = [self._pool.submit(each.run) for each in self._conversations]

    def __exit__(self, *_: object) -> None:
        for each in self._conversations:
            each.end()
        self._pool.shutdown()
        for running in self._running:
            running.result()
