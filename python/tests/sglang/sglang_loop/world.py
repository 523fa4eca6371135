"""Runs a story, and says what is wrong in it.

A violation is a page or metadata that is not the right one, a page written for a request that has it no more, a request
that does not end, or ends twice, or fails although no fault was near it, anything held at rest, a command that
docs/boundary.md does not allow, and an exception that reaches a scheduler.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kv_connector.runtime import commands
from kv_connector.runtime.facade import Arrived, Failed, Granted, Released, Stopped
from kv_connector.sglang import endpoint, first_contacts, sender
from kv_connector.sglang.exchange import MessengerLostError
from sglang_loop import pair_probe
from sglang_loop.decode_engine import DecodeEngine
from sglang_loop.network import Network, Session
from sglang_loop.prefill_engine import EngineDiedError, PrefillEngine
from sglang_loop.ranks import LOGGER, EnginePlan
from sglang_loop.story import Ask, Story
from sglang_loop.weights import Weights, name_of

HEALING_ROUNDS_MAX = 3000
HEALING_SECONDS_MAX = 3000.0
"""Of the stories' clock: several times the longest limit."""
REST_ROUNDS_MAX = 400
PROOF_SECONDS_MAX = 400.0
"""So long a request may wait once its prefiller is lost: a few rounds, which are up to 20 s apart."""
IDLE_ROUNDS = 4
"""So many rounds without anything under way, and the clock is put forward."""
EVENTS = {"Granted": Granted, "Stopped": Stopped, "Released": Released, "Arrived": Arrived, "Failed": Failed}
Engine = PrefillEngine | DecodeEngine


class Faults(logging.Handler):
    """Exceptions that the backend has caught and logged: each is one that it did not foresee."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._report(
                "exception logged", record.getMessage() + "".join(traceback.format_exception(*record.exc_info))
            )


class World:
    """One story's engines."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.violations: list[str] = []
        self.drawn = random.Random(f"rounds of {story.seed}")
        self.network = Network(self.drawn, story.limits, self.report)
        self.network.proof_seconds = story.proof_seconds
        self.plans: dict[str, EnginePlan] = {each.name: each for each in (*story.prefillers, *story.decoders)}
        self.engines: dict[str, Engine] = {}
        self._starts = itertools.count(1)
        self._started: set[str] = set()
        self._back: list[tuple[int, Callable[[], object]]] = []
        """What is undone, and in which round."""
        self._paused: set[str] = set()
        self.weights = Weights()
        self._idle = 0
        self._heals = False
        self.rounds = 0
        for name in self.plans:
            self._start(name)

    def report(self, kind: str, sentence: str) -> None:
        self.violations.append(f"{kind}: {sentence}")

    # ---- the run

    def run(self) -> list[str]:
        """The violations."""
        with self._in_place():
            for at in range(self.story.last_round + 30):
                self._events(at)
                self._round()
                if self.violations:
                    return self.violations
            self._heal()
        return self.violations

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        clock = SimpleNamespace(monotonic=lambda: self.network.now)
        loggers = (LOGGER, logging.getLogger("sglang.srt.kv_messenger"))
        handler = Faults(self.report)
        requests = SimpleNamespace(get=self.network.get)
        with contextlib.ExitStack() as stack:
            for module in (sender, endpoint):
                stack.enter_context(mock.patch.object(module, "time", clock))
            stack.enter_context(mock.patch.object(first_contacts, "FIRST_CONTACT_WAIT_SECONDS", 0.0))
            stack.enter_context(mock.patch("sglang.srt.disaggregation.common.conn.requests", requests))
            stack.enter_context(mock.patch("sglang.srt.disaggregation.common.conn.logger"))
            stack.enter_context(mock.patch.object(sender.TransferSpans, "of", return_value=None))
            stack.enter_context(self.weights.in_place())
            for logger in loggers:
                stack.enter_context(mock.patch.object(logger, "handlers", [handler]))
                stack.enter_context(mock.patch.object(logger, "propagate", False))
            stack.enter_context(pair_probe.in_place())
            yield

    def _heal(self) -> None:
        """No fault is added: every request ends, and nothing stays held."""
        for _at, back in sorted(self._back, key=lambda each: each[0]):
            back()
        self._back, self._heals = [], True
        until = self.network.now + HEALING_SECONDS_MAX
        for _ in range(HEALING_ROUNDS_MAX):
            if all(ask.is_over for ask in self.story.asks) or self.violations or self.network.now > until:
                break
            self._round()
        for ask in self.story.asks:
            if not ask.is_over:
                self.report("does not end", f"{ask}: {ask.ends}, {ask.notes}, blamed {ask.blame!r}")
        if not self.violations:
            self._check_ends()
            self._check_rest()

    def _check_ends(self) -> None:
        for ask in self.story.asks:
            if ask.ended_twice:
                self.report("ended twice", f"{ask}")
            if self._was_forgotten(ask):
                self.report("waited for a decoder that had given up", f"{ask}: {ask.notes}")
            failed = any(end != "success" for end in ask.ends.values())
            if not ask.blame and failed and not self._has_waited(ask) and not self._met_a_loss(ask):
                self.report("failed, and no fault was near it", f"{ask}: {ask.ends}, {ask.notes}")

    def _was_forgotten(self, ask: Ask) -> bool:
        """Whether its prefiller has waited for a decoder that had said that it would not come."""
        waited = any("BOOTSTRAP_TIMEOUT" in sentence for sentence in ask.notes["prefill"])
        heard_in_time = (
            ask.declined_at is not None and ask.prefill_at - ask.declined_at < self.story.limits.grant_wait - 1.0
        )
        alone = [other.room for other in self.story.asks].count(ask.room) == 1
        faults = [kind for _round, kind, _number in self.story.faults if kind != "pause"]
        was_heard = waited and heard_in_time and alone and not ask.had_other_weights
        return was_heard and not faults and ask.blame == "its client leaves"

    def _has_waited(self, ask: Ask) -> bool:
        """Whether it waited for pages that another request held until its own limit was over, because of a fault."""
        limits = any("SGLANG_DISAGGREGATION" in sentence for sentences in ask.notes.values() for sentence in sentences)
        return limits and any(other.blame for other in self.story.asks)

    def _met_a_loss(self, ask: Ask) -> bool:
        """Whether it was the one at whose command a messenger was found to be lost, and ended in that very round."""
        lost = any(self._is_lost(engine) for engine in self.engines.values())
        return lost and any("the messenger was given up" in sentence for sentence in ask.notes["prefill"])

    def _check_proofs(self) -> None:
        """Only pages wait for the proof that nothing writes to them; the request does not."""
        for engine in self.engines.values():
            if isinstance(engine, DecodeEngine) and engine.plan.name not in self._paused:
                for fetching in [each for rank in engine.ranks for each in rank.messenger.fetches.open.values()]:
                    waited = self.network.now - fetching.quarantined_at
                    if fetching.quarantined and waited > PROOF_SECONDS_MAX and fetching.row_lease in engine.transfers:
                        self.report("waits for a proof", f"{fetching.row_lease.ask}, for {waited:.0f} s")

    def _check_rest(self) -> None:
        held: list[str] = []
        for _ in range(REST_ROUNDS_MAX):
            for engine in list(self.engines.values()):  # a rank hears of its last release when it next asks
                for rank in engine.ranks:
                    self._guarded(engine, rank.endpoint.exchange.drain)
            held = [each for engine in self.engines.values() if not self._is_lost(engine) for each in engine.held()]
            if not held or self.violations:
                break
            self._round()
        for each in held:
            self.report("held at rest", each)

    def _round(self) -> None:
        self.rounds += 1
        for at, back in [each for each in self._back if each[0] <= self.rounds]:
            self._back.remove((at, back))
            back()
        engines = list(self.engines.values())
        self.drawn.shuffle(engines)
        before = self._progress()
        moved = False
        for engine in engines:
            if self.drawn.random() >= self.story.skips and engine.plan.name not in self._paused:
                self._guarded(engine, engine.round)
            if self.drawn.random() < self.story.skips:
                self._poll_again(engine)
            moved |= engine.tick(self.story.share)
            moved |= self.network.tick(self.story.share)
        self._note_blame()
        self._check_proofs()
        self._idle = 0 if moved or before != self._progress() else self._idle + 1
        over = self._idle - IDLE_ROUNDS - int(20 * self.story.skips)
        limit = 0.2 if self._back or not self._heals else 20.0  # what is still to come comes within seconds
        self.network.now += min(limit, 0.5 * 2.0 ** min(over, 9)) if over > 0 else self.drawn.uniform(0.0001, 0.02)

    def _progress(self) -> list[int]:
        return [sum(len(ask.ends) for ask in self.story.asks), self.network.pages_written]

    def _guarded(self, engine: Engine, act: Callable[[], object]) -> None:
        if self.engines.get(engine.plan.name) is not engine:  # it has ended in this round, with its server
            return
        self.weights.acts(engine)
        try:
            act()
        except MessengerLostError:
            if engine.plan.exits_when_lost:
                self._kill(engine, "its messenger was lost")
            else:
                self.report("exception in the scheduler", "MessengerLostError, although the engine is to go on")
        except EngineDiedError:
            self._kill(engine, "it died in a pass")
        except Exception:
            self.report("exception in the scheduler", f"{engine.name}: {traceback.format_exc()}")

    def _poll_again(self, engine: Engine) -> None:
        queues = (
            [engine.bootstrap_queue, engine.waiting, engine.inflight]
            if isinstance(engine, PrefillEngine)
            else [engine.queue, engine.transfers]
        )
        for request in itertools.chain(*queues):
            each = request.senders if hasattr(request, "senders") else request.receivers
            self._guarded(engine, each.poll)

    # ---- engines

    def _start(self, name: str) -> None:
        start = next(self._starts)
        moves = self.drawn.random() < 0.8 and name not in self.story.otherwise
        port = 7000 + 10 * start * moves
        plan = replace(self.plans[name], computes_otherwise=self._computes_otherwise(name))
        self._started.add(name)
        self.engines[name] = (PrefillEngine if name.startswith("p") else DecodeEngine)(self.network, plan, start, port)
        self.weights.start(self.engines[name])

    def _computes_otherwise(self, name: str) -> bool:
        when = self.story.otherwise.get(name, "")
        return when == "always" or (when == "restarted" and name in self._started)

    def _kill(self, engine: Engine, why: str) -> None:
        """Its server ends, with all its data-parallel ranks."""
        if self.engines.get(engine.plan.name) is not engine:
            return
        of_server = [each for each in self.engines.values() if each.plan.server == engine.plan.server]
        for each in of_server:
            self._end(each, why)
        self.network.engines.pop(getattr(engine, "bootstrap", ""), None)
        self._later(lambda: [self._start(each.plan.name) for each in of_server])

    def _end(self, engine: Engine, why: str) -> None:
        del self.engines[engine.plan.name]
        self._blame(why, partial(_is_at, engine.plan.name))
        for ask in engine.open_requests():
            ask.end(engine.mode, "lost")
        for rank in engine.ranks:
            if rank.messenger.alive:
                self.network.kill(rank.messenger)

    def _later(self, back: Callable[[], object]) -> None:
        self._back.append((self.rounds + self.drawn.randint(1, 25), back))

    @staticmethod
    def _is_lost(engine: Engine) -> bool:
        return any(rank.endpoint.exchange._dead for rank in engine.ranks)

    # ---- events

    def _events(self, at: int) -> None:
        for ask in self.story.asks:
            for side in ("prefill", "decode"):
                if ask.rounds.get(side) == at:
                    self._arrive(ask, side)
            for when, side, on_another_thread in ask.aborts:
                if when == at:
                    self._abort(ask, side, on_another_thread)
        for when, kind, number in self.story.faults:
            if when == at:
                self._fault(kind, number)
        for when, only in self.story.updates:
            if when == at:
                self._update(only)

    def _update(self, only: int | None) -> None:
        """A trainer's step: all engines are paused and go on in any order, or one is updated before the others."""
        weights, names = self.weights.next(), sorted(self.plans)
        for ask in [each for each in self.story.asks if each.leg and not each.is_over]:
            ask.updates += 1
        self._blame("weights changed twice while it waited", lambda ask: ask.updates > 1)
        first = names if only is None else [names[only % len(names)]]
        for name in first:
            self._pause_for_a_while(name)
        self._give(first, weights)
        for name in [each for each in names if each not in first]:
            self._later(partial(self._give, [name], weights))

    def _give(self, names: Sequence[str], weights: int) -> None:
        for name in names:
            self.weights.give(name, weights, self.engines.get(name))
        self._blame("its engines had other weights", self.weights.differ)
        for ask in [each for each in self.story.asks if not each.is_over]:
            ask.had_other_weights |= self.weights.differ(ask)

    def _arrive(self, ask: Ask, side: str) -> None:
        if not ask.leg:
            self._blame_rooms(ask)
        engine = self.engines.get(ask.prefiller if side == "prefill" else ask.decoder)
        if engine is None:
            ask.blame = ask.blame or "its engine was gone"
            ask.end(side, "refused")
            return
        ask.leg = side
        if self.weights.differ(ask):
            ask.blame = ask.blame or "its engines have other weights"
        if side == "prefill":
            ask.prefill_at = self.network.now
        if ask.prefiller in self.story.otherwise:
            ask.blame = ask.blame or "its prefiller computes another KV"
        leg = _Leg(ask, side)
        engine.arrived.append(leg)  # type: ignore[arg-type]

    def _abort(self, ask: Ask, side: str, on_another_thread: bool) -> None:
        engine = self.engines.get(ask.prefiller if side == "prefill" else ask.decoder)
        if engine is None:
            return
        for leg in engine.open_requests():
            if leg.index == ask.index:
                more = {"on_another_thread": True} if on_another_thread else {}
                self._guarded(engine, partial(engine.abort, leg, **more))

    def _blame_rooms(self, ask: Ask) -> None:
        """A room is free again when both sides have ended well."""
        for other in self.story.asks:
            if other is ask or other.room != ask.room or not other.leg:
                continue
            if not other.is_over:
                other.blame = other.blame or "another request has its room"
                ask.blame = ask.blame or "another request had its room"
            elif other.blame:
                ask.blame = ask.blame or "an earlier request of its room failed"

    def _blame(self, why: str, of: Callable[[Ask], bool]) -> None:
        for ask in self.story.asks:
            if ask.leg and not ask.is_over and of(ask):
                ask.blame = ask.blame or why

    def _note_blame(self) -> None:
        """What a fault has turned out to concern."""
        for session in self.network.sessions:
            if (
                session.over and session.prefiller is not None
            ):  # a request that comes before both sides know is lost too
                self._blame("its link was lost", partial(_is_between, session))
        for engine in self.engines.values():
            if self._is_lost(engine):
                self._blame("a messenger was lost", partial(_is_at, engine.plan.name))
            for messenger in [rank.messenger for rank in engine.ranks if rank.messenger.has_lost]:
                rooms = {str(getattr(each, "transfer", "")) for each in messenger.refused}
                lost = (*messenger.refused, *messenger.dropped)
                rooms |= {str(getattr(each, "request", "")).split("#")[0] for each in lost}
                self._blame("a command or an event of it was lost", partial(_has_room_of, rooms))

    # ---- faults

    def _fault(self, kind: str, number: int) -> None:
        names = sorted(self.engines)
        if not names:
            return
        sides = [name for name in names if name.startswith("d" if _is_decoders(kind) else "p")]
        chosen = sides or names
        engine = self.engines[chosen[number % len(chosen)]]
        messenger = engine.ranks[number % len(engine.ranks)].messenger
        if kind.startswith("kill"):
            self._kill(engine, "its engine was killed")
        elif kind.startswith("refuse"):
            messenger.refuses.append(getattr(commands, kind.split()[1]))
        elif kind.startswith("drop"):
            messenger.drops.append(EVENTS[kind.split()[1]])
        else:
            getattr(self, "_" + kind.replace(" ", "_"))(engine, messenger, number)

    def _link(self, _engine: Engine, _messenger: Any, number: int) -> None:
        sessions = [session for session in self.network.sessions if session.is_ready and not session.over]
        if sessions:
            sending = [write.delivery.grant.session for write in self.network.writes]
            sessions = [session for session in sessions if session in sending] or sessions
            session = sessions[number % len(sessions)]
            self._blame("its link was lost", partial(_is_between, session))
            self.network.end(session)

    def _pause(self, _engine: Engine, _messenger: Any, number: int) -> None:
        self._pause_for_a_while(sorted(self.engines)[number % len(self.engines)])

    def _pause_for_a_while(self, name: str) -> None:
        self._paused.add(name)
        self._later(lambda: self._paused.discard(name))

    def _die_in_a_pass(self, engine: Engine, _messenger: Any, _number: int) -> None:
        if isinstance(engine, PrefillEngine):
            engine.dies_in_pass = True

    def _lose_messenger(self, _engine: Engine, _messenger: Any, number: int) -> None:
        engine = self.engines[sorted(self.engines)[number % len(self.engines)]]
        engine.ranks[number % len(engine.ranks)].messenger.polls_fail = True

    def _hang_fences(self, _engine: Engine, messenger: Any, _number: int) -> None:
        messenger.fences_hang = True

    def _no_bootstrap_server(self, engine: Engine, _messenger: Any, _number: int) -> None:
        address = f"{engine.plan.server}:8998"
        self.network.unreachable.add(address)
        self._later(lambda: self.network.unreachable.discard(address))
        self._blame_unreachable(address)

    def _blame_unreachable(self, address: str) -> None:
        for ask in self.story.asks:
            if ask.bootstrap == address and not ask.is_over:
                ask.blame = ask.blame or "its bootstrap server did not answer"

    def _misplace(self, engine: Engine, _messenger: Any, number: int) -> None:
        asks = [ask for ask in self.story.asks if ask.prefiller == engine.plan.name and not ask.leg]
        if asks and isinstance(asks[number % len(asks)].room, int):
            ask = asks[number % len(asks)]
            engine.ranks[-1].endpoint.misplaced.add(ask.room)
            for other in self.story.asks:
                if other.room == ask.room:
                    other.blame = other.blame or "it was misplaced"


class _Leg:
    """One leg of an ask, as its engine has it."""

    def __init__(self, ask: Ask, side: str) -> None:
        self._ask, self._side = ask, side

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ask, name)

    def declined(self, now: float) -> None:
        self._ask.declined_at = now

    def named(self, weights: int) -> str:
        """The digest of its prompt with these weights."""
        digest = self._ask.digests[self._side == "decode"]
        return f"{digest} {name_of(weights)}" if weights else digest

    def __str__(self) -> str:
        return str(self._ask)


def _is_at(name: str, ask: Ask) -> bool:
    return name in (ask.prefiller, ask.decoder)


def _is_between(session: Session, ask: Ask) -> bool:
    return (ask.prefiller, ask.decoder) == (session.address[0], session.decoder.address[0])


def _has_room_of(rooms: set[str], ask: Ask) -> bool:
    return str(ask.room) in rooms


def _is_decoders(kind: str) -> bool:
    return kind in ("kill decoder", "refuse Fetch", "refuse Abandon", "refuse Decline", "drop Arrived", "drop Failed")
