"""Runs a world with pulls: turns of conversations at four engines, which may end, stop, and lose what they hold.

Beside what every world checks: a message of a world in which nothing is lost computes what neither its engine nor the
one that it names holds, and no more; a pull leaves the request's other parameters alone; an engine without requests can
reset its prefix cache; and at rest no half of a connector remembers anything.
"""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_loop.conversations import DEAD, EARLIER, HOLDER, ITSELF, MUTE, PullPlan, Turn, text_of
from engine_loop.engines import Engine
from engine_loop.kinds import world_of
from engine_loop.kv_pages import BLOCK_TOKENS, Beside
from engine_loop.loop import PATIENCE_SECONDS, AskState, Leg, World, where
from engine_loop.traffic import PLAIN, Ask

PAUSE_ROUNDS = (3, 30, 300)
SOURCE = "remote_kv_source"
VERSIONS = ("step 1", "step 2", "step 3", "")
"""Of the model's weights; "" = an update that has none."""


@dataclass
class _History:
    """What an engine has computed or fetched, and loses nothing of."""

    tokens: list[int]
    beside: Beside


class PullWorld(World):
    """One seed."""

    def __init__(self, plan: PullPlan, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._silent = socket.create_server(("127.0.0.1", 0))  # takes connections, and nothing is read from them
        self._dead = socket.socket()  # bound, so that no other process gets its port, and never listened on
        self._dead.bind(("127.0.0.1", 0))
        super().__init__(plan, patience_seconds)
        self.pull_plan = plan
        self._trouble = random.Random(f"trouble of {plan.kind} {plan.seed}")
        self._ended: set[str] = set()
        self._paused: dict[str, int] = {}
        """Engines that make no step, and for how many rounds more."""
        self._holds: dict[str, list[_History]] = {name: [] for name in self._engines}
        self._computes_most: dict[str, int] = {}
        """How many tokens of its prompt a request may compute."""
        self._named: dict[str, dict[str, Any]] = {}
        """The kv_transfer_params of requests with a hint."""
        for engine in self._engines.values():
            self._count_pulls(engine.scheduler.connector._half._pulls)

    def run(self) -> list[str]:
        """Everything found wrong."""
        try:
            found = super().run()
        finally:
            self._silent.close()
            self._dead.close()
        return found

    def _count_pulls(self, pulls: Any) -> None:
        count = pulls._count

        def counted(outcome: str, *figures: Any) -> None:
            self.results[outcome] += 1
            count(outcome, *figures)

        pulls._count = counted

    # ---- what goes wrong

    def _one_round(self) -> None:
        draw, plan = self._trouble, self.pull_plan
        for name in list(self._paused):
            self._paused[name] -= 1
            if self._paused[name] <= 0:
                del self._paused[name]
        engine = draw.choice(list(self._running()))
        if draw.random() < plan.reset_share:
            self._reset(engine)
        if draw.random() < plan.update_share:
            self._update_weights(engine)
        if draw.random() < plan.pause_share:
            self._paused[engine.plan.name] = draw.choice(PAUSE_ROUNDS)
        if draw.random() < plan.end_share:
            self._end(draw.choice(self._others))
        super()._one_round()

    def _running(self) -> list[Engine]:
        return [engine for name, engine in self._engines.items() if name not in self._ended]

    def _update_weights(self, engine: Engine) -> None:
        engine.core.collective_rpc("start_draft_weight_update")
        engine.core.collective_rpc("finish_weight_update")
        draw = self._trouble
        if engine in self._others and draw.random() < self.pull_plan.models_share:
            self._update_models(self._others if draw.random() < self.pull_plan.together_share else [engine])

    def _update_models(self, engines: Sequence[Engine]) -> None:
        version = self._trouble.choice(VERSIONS)
        for engine in engines:
            if engine.plan.name not in self._ended:
                self._update_model(engine, version)

    def _update_model(self, engine: Engine, version: str) -> None:
        """Engines whose weights have one name have equal ones; a cache that is not emptied keeps what it has."""
        draw, runner = self._trouble, engine.executor.runner
        engine.core.collective_rpc("update_weights")
        engine.core.collective_rpc("finish_weight_update")
        if version:
            engine.core.set_weight_version(version)
        name = engine.scheduler.connector._weights.name()
        runner.weights = [*(each for each in runner.weights if each != name), name]
        self.results["weights"] += 1
        if draw.random() < 0.7 and engine.core.reset_prefix_cache():
            del runner.weights[:-1]

    def _reset(self, engine: Engine) -> None:
        """Succeeds where no request has pages: what is offered is taken back, what is fetched is over soon."""
        scheduler = engine.scheduler
        holds_none = not (scheduler.requests or not scheduler.connector._half._quarantine.is_empty())
        done = engine.core.reset_prefix_cache()
        if done:
            del engine.executor.runner.weights[:-1]
        elif holds_none:
            self._resets_later(engine)

    def _resets_later(self, engine: Engine) -> None:
        """Others may be stopped in a fetch from it; the engine goes on, and no other one is needed for it to end."""
        begun_seconds = time.monotonic()
        while not engine.core.reset_prefix_cache():
            if engine.has_work:
                super()._step(engine)
            if time.monotonic() - begun_seconds > self._patience_seconds:
                self.violations.report("cannot reset", f"{engine.plan.name}: {engine.held()}")
                return
        del engine.executor.runner.weights[:-1]

    def _end(self, engine: Engine) -> None:
        """Its process ends in order; what it served is lost."""
        name = engine.plan.name
        if name in self._ended:
            return
        self._ended.add(name)
        for leg in self._legs.values():
            if leg.side == name:
                self._on_aborted(leg)
        self._apis.pop(name).close()
        engine.close()

    def _end_source(self, turn: Turn) -> None:
        name, turn.source_ends_in = self._named_engine(turn, turn.side), ""
        for engine in self._others:
            if engine.plan.name == name:
                self._end(engine)

    def _step(self, engine: Engine) -> None:
        if engine.plan.name not in self._ended and engine.plan.name not in self._paused:
            super()._step(engine)

    # ---- the turns

    def _advance(self, state: AskState) -> None:
        turn = state.ask
        assert isinstance(turn, Turn)
        if not (state.prefill_sent or state.decode_sent):
            before = self._state_of(turn.after) if turn.after else None
            if before is not None and not before.done():
                state.begun_round = self._round
                return
            self._compose(state, before)
        super()._advance(state)
        if turn.gone_in and not state.gone and turn.gone_in in self._pulls_in(state):
            self._go(state)
        if turn.source_ends_in and turn.source_ends_in in self._pulls_in(state):
            self._end_source(turn)
        if turn.updated_in and turn.updated_in in self._pulls_in(state):
            turn.updated_in = ""
            engine = self._engines[turn.side]
            versions = {*VERSIONS} - {engine.scheduler.connector._weights.name()}
            self._update_model(engine, self._trouble.choice(sorted(versions)))

    def _state_of(self, turn: Turn) -> AskState | None:
        """None if all its group has ended."""
        return next((state for state in itertools.chain.from_iterable(self._open) if state.ask is turn), None)

    def _compose(self, state: AskState, before: AskState | None) -> None:
        """Its prompt is known now: the history, with what was answered, and its own text."""
        turn = state.ask
        assert isinstance(turn, Turn)
        state.begun_round, state.begun_seconds = self._round, time.monotonic()
        if turn.side in self._ended:
            turn.side = "P"
        if turn.levelled:
            self._update_models(self._others)
        history = list(before.ask.prompts[0]) if before is not None else []
        if before is not None and before.decode_legs and not before.decode_legs[0].gone:
            history += before.decode_legs[0].tokens
        turn.prompts = [text_of(turn, history, self.pull_plan.prefiller.model_tokens_max - 40)]

    def _pulls_in(self, state: AskState) -> set[str]:
        """The states of its legs' pulls."""
        found = set()
        for leg in (*state.prefill_legs, *state.decode_legs):
            pulling = self._engines[leg.side].scheduler.connector._half._pulls._pulling.get(leg.request)
            if pulling is not None:
                found.add(str(pulling.state.value))
        return found

    def _add(self, leg: Leg, transfer: dict[str, Any] | None, **more: Any) -> None:
        turn = leg.state.ask if leg.state is not None else None
        if isinstance(turn, Turn):
            alone = turn.route == PLAIN or leg in leg.state.prefill_legs
            name = self._named_engine(turn, leg.side)
            if alone or turn.named_on_decode:
                hint = self._hint(name if name is not None else turn.source)
                transfer = {**(transfer or {}), **({SOURCE: hint} if hint is not None else {})} or None
            if alone and self.pull_plan.counted:
                self._computes_most[leg.request] = self._to_compute(leg, name)
        super()._add(leg, transfer, **more)
        if transfer and SOURCE in transfer and not transfer.get("do_remote_prefill"):
            self._named[leg.request] = dict(transfer)

    def _named_engine(self, turn: Turn, side: str) -> str | None:
        """The engine that the turn names; None if it names none."""
        after = turn.after
        match turn.source:
            case str(word) if word in self._engines:
                return word
            case str(word) if word == ITSELF:
                return side
            case str(word) if word == HOLDER and after is not None:
                return _decoded_at(after)
            case str(word) if word == EARLIER and after is not None and after.after is not None:
                return _decoded_at(after.after)
        return None

    def _hint(self, source: object) -> object:
        if source == DEAD:
            port = self._dead.getsockname()[1]
        elif source == MUTE:
            port = self._silent.getsockname()[1]
        elif isinstance(source, str):
            if source not in self._engines:
                return None
            if source in self._ended:
                port = self._dead.getsockname()[1]
            else:
                return where(self._engines[source]) | {"kv_request_id": "unused"}
        else:
            return source
        return {"remote_host": "127.0.0.1", "remote_port": port, "kv_request_id": "unused"}

    # ---- what a message computes

    def _to_compute(self, leg: Leg, source: str | None) -> int:
        asked = (len(leg.prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        own = min(asked, self._held_at(leg.side, leg))
        held = min(asked, self._held_at(source, leg)) if source else 0
        least = int(self._engines[leg.side].plan.options["pull_tokens_min"])
        return len(leg.prompt) - (held if held - own >= least else own)

    def _held_at(self, side: str, leg: Leg) -> int:
        """The tokens of its prompt that this engine has in whole blocks."""
        longest = 0
        for history in self._holds[side]:
            if history.beside == leg.beside:
                common = sum(1 for _ in itertools.takewhile(_same, zip(history.tokens, leg.prompt, strict=False)))
                longest = max(longest, common // BLOCK_TOKENS * BLOCK_TOKENS)
        return longest

    def _on_output(self, engine: Engine, output: Any) -> None:
        super()._on_output(engine, output)
        if output.finish_reason is None:
            return
        leg = self._legs[output.request_id]
        if not leg.gone and leg.posted is None:
            self._holds[leg.side].append(_History([*leg.prompt, *leg.tokens[:-1]], leg.beside))
            self._check_computed(engine, leg)
        if leg.request in self._named and not leg.gone:
            self._check_params(engine, leg)

    def _check_computed(self, engine: Engine, leg: Leg) -> None:
        most = self._computes_most.get(leg.request)
        computed = engine.executor.runner.computed[leg.request] - (len(leg.tokens) - 1)
        if most is not None and computed > most:
            self.violations.report(
                "computed",
                f"request {leg.request} of {leg.side} has computed {computed} tokens of its {len(leg.prompt)}, expected"
                f" {most} at most: {self._named.get(leg.request)}",
            )

    def _check_params(self, engine: Engine, leg: Leg) -> None:
        """A pull takes back its hint, and nothing else: the request is sent on, and others may read what it says."""
        request = next(each for each in reversed(engine._requests) if each.request_id == leg.request)
        left = {name: value for name, value in (request.kv_transfer_params or {}).items() if name != SOURCE}
        if left != {name: value for name, value in self._named[leg.request].items() if name != SOURCE}:
            self.violations.report("params changed", f"request {leg.request} of {leg.side} has {left}")

    # ---- at rest

    def _drain(self) -> None:
        self._paused.clear()
        super()._drain()

    def _held(self) -> str:
        found = [super()._held()]
        for engine in self._running():
            if not engine.scheduler.connector._half.is_idle():
                found.append(f"{engine.plan.name}: the scheduler's half remembers something")
            workers = [rank.connector._worker.held() for rank in engine.executor.ranks]
            if any(workers):
                found.append(f"{engine.plan.name}: its workers remember {workers}")
        return "; ".join(filter(None, found))


def open_world(kind: str, seed: int, requests: int, patience_seconds: float) -> World:
    """The world of a kind and a seed."""
    plan = world_of(kind, seed, requests)
    made = PullWorld if isinstance(plan, PullPlan) else World
    return made(plan, patience_seconds)


def _decoded_at(turn: Ask) -> str:
    return turn.side if turn.route == PLAIN else "D"


def _same(pair: tuple[int, int]) -> bool:
    return pair[0] == pair[1]
