"""Runs a world: clients, a router and two engines in one thread, step by step, beside the messengers' own threads.

Whatever is wrong is a violation: a page or token that is not the right one, a request that failed and should have been
served or ended twice, an engine that died or stands still, an error in the log that concerns no such request, and
anything held at the end. The first one ends the world.
"""

from __future__ import annotations

import itertools
import logging
import random
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine_loop.balances import check_balances
from engine_loop.engines import STATE, Engine
from engine_loop.kv_pages import TOKENS_ONLY, Beside, next_token
from engine_loop.model_runner import salt_of
from engine_loop.prefiller_api import EngineApi, Posted
from engine_loop.sleep_mode import Sleeper
from engine_loop.traffic import DECODER_FIRST, HANDED_ON, PLAIN, Ask, WorldPlan

PATIENCE_SECONDS = 600.0
"""A world in which nothing at all happens for so long stands still; milliseconds are usual."""
IDLE_SECONDS = 0.0002


@dataclass
class Leg:
    """A request of one engine."""

    request: str
    side: str
    prompt: list[int]
    max_tokens: int
    state: AskState | None
    posted: Posted | None = None
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    gone: bool = False
    answer: dict[str, Any] | None = None
    beside: Beside = TOKENS_ONLY


@dataclass
class AskState:
    """An ask under way."""

    ask: Ask
    begun_round: int
    begun_seconds: float
    prefill_legs: list[Leg] = field(default_factory=list)
    decode_legs: list[Leg] = field(default_factory=list)
    prefill_sent: bool = False
    decode_sent: bool = False
    gone: bool = False

    def done(self) -> bool:
        """Whether each leg that will ever leave has ended."""
        sent = self.prefill_sent and self.decode_sent
        return sent and all(leg.ended for leg in (*self.prefill_legs, *self.decode_legs))


class Violations(logging.Handler):
    """Everything found wrong, also by way of the connector's log."""

    def __init__(self, plan: WorldPlan) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._may_fail: dict[str, bool] = {}
        self.before_judging: Callable[[], None] = lambda: None
        """Allows what may fail by now."""
        self._name = re.compile(rf"\b{plan.kind}-{plan.seed}-\d+")
        for ask in itertools.chain.from_iterable(plan.groups):
            for name in self._name.findall(f"{ask.name} {ask.transfer_id or ''}"):
                self._may_fail[name] = self._may_fail.get(name, False) or ask.may_fail or ask.may_log

    def allow(self, ask: Ask) -> None:
        """This ask may fail after all."""
        ask.may_fail = True
        self._may_fail.update(dict.fromkeys(self._name.findall(f"{ask.name} {ask.transfer_id or ''}"), True))

    def report(self, kind: str, sentence: str) -> None:
        """Something is wrong."""
        self.found.append(f"{kind}: {sentence}")

    def emit(self, record: logging.LogRecord) -> None:
        """An error is right only if it says why a request failed that may fail."""
        message = record.getMessage()
        self.before_judging()
        if record.exc_info:
            trace = "".join(traceback.format_exception(*record.exc_info))
            self.report("error logged", f"{message}\n{trace}")
            return
        named = self._name.findall(message)
        if not named or not all(self._may_fail.get(name, False) for name in named):
            self.report("error logged", message)


class World:
    """One seed."""

    def __init__(self, plan: WorldPlan, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.plan = plan
        self._patience_seconds = patience_seconds
        self._random = random.Random(f"steps of {plan.kind} {plan.seed}")
        self.violations = Violations(plan)
        self.violations.before_judging = self._allow_outlived
        self._log = logging.getLogger("vllm.kv_messenger")
        self._log.addHandler(self.violations)
        served = plan.engines if plan.others else plan.engines[:1]
        self._apis = {each.name: EngineApi() for each in served}
        for each in served:
            each.options["engine_api_url"] = self._apis[each.name].url
        self._depth = 0
        """How many steps run: an engine inside a pass may let the other one make a step, and no more."""
        report = self.violations.report
        self._engines = {
            each.name: Engine(each, report, lambda point, side=each.name: self._meanwhile(point, self._engines[side]))
            for each in plan.engines
        }
        self._prefiller, self._decoder, *self._others = self._engines.values()
        self.sleeper = Sleeper(self._random, self._engines, report)
        self._groups = iter(plan.groups)
        self._open: list[list[AskState]] = []
        self._groups_left = len(plan.groups)
        self._legs: dict[str, Leg] = {}
        self._round = 0
        self._started_seconds = time.monotonic()
        self._progress: tuple[int, ...] = ()
        self._progress_seconds = time.monotonic()
        self.outlived: set[str] = set()
        """Asks that were open for longer than the shortest limit when something failed."""
        self.results: Counter[str] = Counter()
        """What the requests that name an engine to pull from came to."""
        self.ended = {"length": 0, "error": 0, "gone": 0, "rejected": 0}

    # ---- the run

    def run(self) -> list[str]:
        """Everything found wrong."""
        try:
            while (self._groups_left or self._open) and not self.violations.found:
                self._one_round()
            while self.sleeper.anything and not self.violations.found:
                self._sleep(0.0)
                self._step_any()
            if not self.violations.found:
                self._drain()
            if not self.violations.found:
                for engine in self._running():
                    engine.check_prefix_cache()
                    check_balances(engine.executor.messengers, self.violations.report)
            if self.violations.found:
                for engine in self._running():
                    self.violations.found += engine.last_words()
        finally:
            self._log.removeHandler(self.violations)
            for engine in self._running():
                engine.close()
            for api in self._apis.values():
                api.close()
        return self.violations.found

    def _running(self) -> list[Engine]:
        """The engines that have not ended."""
        return list(self._engines.values())

    def pages_checked(self) -> int:
        """How many pages were compared at all engines."""
        return sum(engine.executor.runner.pages_checked for engine in self._engines.values())

    def _one_round(self) -> None:
        self._round += 1
        while self._groups_left and len(self._open) < self.plan.open_groups:
            self._groups_left -= 1
            now_seconds = time.monotonic()
            self._open.append([AskState(ask, self._round, now_seconds) for ask in next(self._groups)])
        for side, api in self._apis.items():
            for posted in api.take():
                self._on_posted(posted, side)
            for posted in api.take_left():
                self._on_left(posted, side)
        for state in itertools.chain.from_iterable(list(self._open)):
            self._advance(state)
        self._open = [group for group in self._open if not all(state.done() for state in group)]
        if self.plan.sleep_share:
            self._sleep(self.plan.sleep_share)
        self._step_any()
        self._watch("requests are open: " + self._states)

    def _sleep(self, share: float) -> None:
        """Engines sleep and wake up: what is open then may fail, and what is answered must be right."""
        self.sleeper.round(share)
        if self.sleeper.anything:
            for state in itertools.chain.from_iterable(self._open):
                self.violations.allow(state.ask)
        for engine in self._engines.values():
            aborted, engine.core.aborted = engine.core.aborted, []
            for request in aborted:
                self._on_aborted(self._legs[request])

    def _allow_outlived(self) -> None:
        """Limits run on while this process has no core: what a limit may have ended may fail."""
        oldest_seconds = time.monotonic() - self.plan.shortest_limit_seconds
        for state in itertools.chain.from_iterable(self._open):
            if state.begun_seconds < oldest_seconds and not state.ask.may_fail:
                self.outlived.add(state.ask.name)
                self.violations.allow(state.ask)

    def _on_aborted(self, leg: Leg) -> None:
        """The engine has aborted a request to sleep."""
        if not leg.ended:
            leg.ended = leg.gone = True
            self.ended["gone"] += 1
        if leg.posted is not None:
            leg.posted.answer(served=False)

    def _step_any(self) -> None:
        engine = self._prefiller if self._random.random() < self.plan.prefill_share else self._decoder
        if self._others:
            engine = self._random.choice(list(self._engines.values()))
        if engine.has_work:
            self._step(engine)
        elif not any(each.has_work for each in self._running()):
            time.sleep(IDLE_SECONDS)  # a leg is due later, or waits for what a messenger does

    def _step(self, engine: Engine) -> None:
        within, self._depth = self._depth, self._depth + 1
        try:
            outputs = engine.step()
        except Exception as fault:
            self.violations.report("engine died", f"{engine.plan.name}: {fault!r}\n{traceback.format_exc(limit=-6)}")
            return
        finally:
            self._depth = within
        for output in outputs:
            self._on_output(engine, output)

    def _meanwhile(self, point: str, engine: Engine) -> None:
        """Inside a pass: it takes its time, and the other engine goes on."""
        occupied = any(
            state.ask.occupies == engine.plan.name and not state.gone for group in self._open for state in group
        )
        if point == "begun" and (occupied or self._random.random() < self.plan.slow_pass_share):
            time.sleep(self.plan.slow_pass_seconds)
        other = self._decoder if engine is self._prefiller else self._prefiller
        if self._others:
            other = self._random.choice([each for each in self._engines.values() if each is not engine])
        if self._depth == 1 and other.has_work and self._random.random() < self.plan.interleave_share:
            self._step(other)

    @property
    def _states(self) -> str:
        unended = [leg for leg in self._legs.values() if not leg.ended]
        return ", ".join(f"{leg.side} {leg.request} {self._status(leg)}" for leg in unended[:6]) or "none was sent"

    def _status(self, leg: Leg) -> str:
        request = self._engines[leg.side].scheduler.requests.get(leg.request)
        return str(request.status) if request is not None else "unknown to the scheduler"

    def _watch(self, what: str) -> None:
        """A violation if nothing has happened for long."""
        engines = self._engines.values()
        progress = (
            *(engine.computed_tokens for engine in engines),
            *(engine.executor.reported for engine in engines),
            len(self._legs),
            sum(self.ended.values()),
            len(self._open),
        )
        if progress != self._progress:
            self._progress, self._progress_seconds = progress, time.monotonic()
        elif time.monotonic() - self._progress_seconds > self._patience_seconds:
            self.violations.report(
                "stands still", f"nothing happened for {self._patience_seconds:g} s and {what}; {self._held()}"
            )

    def _held(self) -> str:
        return "; ".join(filter(None, (engine.held() for engine in self._running())))

    def _drain(self) -> None:
        """All have ended: nothing may stay held, on either side."""
        self._progress_seconds = time.monotonic()
        while not self.violations.found:
            held = self._held()
            busy = [engine for engine in self._running() if engine.has_work]
            if not held and not busy:
                return
            for engine in busy:
                self._step(engine)
            if not busy:
                time.sleep(IDLE_SECONDS)
            self._watch(f"all requests have ended: {held}")

    # ---- clients and the router

    def _advance(self, state: AskState) -> None:
        ask, age = state.ask, self._round - state.begun_round
        if ask.route == PLAIN:
            if not state.decode_sent:
                state.prefill_sent = True
                self._send_decode(state, None, side=ask.occupies or ask.side)
            if ask.occupies and time.monotonic() - self._started_seconds > self.plan.queue_seconds:
                self._go(state)
        elif ask.route == DECODER_FIRST:
            host = ",".join(f"{host}:{port}" for host, port in self._prefiller.addresses)
            if not state.decode_sent:
                state.prefill_sent = True
                self._send_decode(state, {"do_remote_prefill": True, "prefiller": host} | _beginning(ask))
        elif ask.route == HANDED_ON:
            self._advance_handed_on(state)
        else:
            self._advance_both(state, age)
        if ask.gone_after is not None and not state.gone and age >= ask.gone_after:
            self._go(state)

    def _advance_both(self, state: AskState, age: int) -> None:
        ask = state.ask
        if ask.decode_leg_ahead:
            if not state.decode_sent:
                self._send_decode(state, self._named_prefiller(ask))
            if not state.prefill_sent and age >= ask.leg_delay and (not ask.awaits_grants or self._granted(age)):
                self._send_prefill(state)
        else:
            if not state.prefill_sent:
                self._send_prefill(state)
            if not state.decode_sent and age >= ask.leg_delay:
                self._send_decode(state, self._named_prefiller(ask))

    def _granted(self, age: int) -> bool:
        waiting = [s for group in self._open for s in group if s.decode_sent and not s.prefill_sent]
        legs = sum(not leg.ended for state in waiting for leg in state.decode_legs)
        return age > self.plan.grants_awaited_rounds or self._prefiller.gauge("grants_waiting") >= legs

    def _advance_handed_on(self, state: AskState) -> None:
        if not state.prefill_sent:
            self._send_prefill(state)
        if state.decode_sent or not all(leg.ended for leg in state.prefill_legs):
            return
        answers = [leg.answer for leg in state.prefill_legs[: state.ask.choices] if leg.answer]
        if answers:
            self._send_decode(state, answers[-1])
        else:
            state.decode_sent = True  # the router answers with an error
            self._allow_outlived()
            if not state.ask.may_fail:
                self.violations.report("failed", f"the prefiller gave no answer for ask {state.ask.name}")

    def _named_prefiller(self, ask: Ask) -> dict[str, Any]:
        named = {"do_remote_prefill": True, "do_remote_decode": False} | where(self._prefiller)
        return named | _beginning(ask) | ({"transfer_id": ask.transfer_id} if ask.transfer_id else {})

    def _request_ids(self, ask: Ask) -> list[tuple[str, list[int]]]:
        """As vLLM makes them: the prompt's place in the list, a random end, and the choice in front."""
        made = []
        for index, prompt in enumerate(ask.prompts):
            parent = f"cmpl-{ask.name}-{index}-{self._random.getrandbits(32):08x}"
            children = [f"{choice}_{parent}" for choice in range(ask.choices)] if ask.choices > 1 else [parent]
            made += [(child, prompt) for child in children]
        return made

    def _send_prefill(self, state: AskState) -> None:
        state.prefill_sent = True
        ask = state.ask
        if state.gone and ask.gone_from == "both" and self._random.random() < 0.5:
            return  # the router has seen that the client is gone
        transfer = {"do_remote_decode": True} | ({"transfer_id": ask.transfer_id} if ask.transfer_id else {})
        for request, prompt in self._request_ids(ask):
            longest = self.plan.prefill_tokens_max
            max_tokens = self._random.randint(1, longest) if longest > 1 else 1
            leg = Leg(request, "P", prompt, max_tokens, state, beside=ask.beside)
            state.prefill_legs.append(leg)
            self._add(leg, transfer)
        if state.gone:
            self._leave(state, "prefill")

    def _send_decode(self, state: AskState, transfer: dict[str, Any] | None, side: str = "D") -> None:
        state.decode_sent = True
        if state.ask.rejected:
            self._reject(state.ask, transfer)
            return
        for request, prompt in self._request_ids(state.ask):
            whole = prompt + state.ask.goes_on
            leg = Leg(request, side, whole, state.ask.max_tokens, state, beside=state.ask.beside)
            state.decode_legs.append(leg)
            self._add(leg, transfer, prompt_logprobs=1 if state.ask.prompt_logprobs else None)
        if state.gone:
            self._leave(state, "decode")

    def _reject(self, ask: Ask, transfer: dict[str, Any] | None) -> None:
        """An HTTP request that its API server rejected has no id but one that this server made up for it."""
        self.ended["rejected"] += 1
        self._decoder.reject(f"{self._random.getrandbits(64):016x}", {"remote_request_id": ask.name} | (transfer or {}))

    def _add(self, leg: Leg, transfer: dict[str, Any] | None, **more: Any) -> None:
        self._legs[leg.request] = leg
        more |= {"transfer": transfer, "max_tokens": leg.max_tokens, "beside": leg.beside}
        self._engines[leg.side].add(leg.request, leg.prompt, **more)

    def _go(self, state: AskState) -> None:
        """The client has gone; legs that leave later are aborted at once."""
        if state.gone:
            return
        state.gone = True
        for leg in ("prefill", "decode"):
            self._leave(state, leg)

    def _leave(self, state: AskState, side: str) -> None:
        if state.ask.gone_from not in (side, "both"):
            return
        for leg in state.prefill_legs if side == "prefill" else state.decode_legs:
            if not leg.ended:
                leg.ended = leg.gone = True
                self.ended["gone"] += 1
                self._engines[leg.side].abort(leg.request, during_step=self._random.random() < 0.3)

    def _on_posted(self, posted: Posted, side: str) -> None:
        """A prompt that a messenger enqueues in its own engine."""
        request = f"cmpl-{posted.transfer}-0-{self._random.getrandbits(32):08x}"
        leg = Leg(request, side, posted.prompt, posted.max_tokens, None, posted, beside=Beside(salt=posted.cache_salt))
        self._add(leg, posted.transfer_params)
        if posted.is_question:
            leg.prompt = posted.prompt[:1]

    def _on_left(self, posted: Posted, side: str) -> None:
        """As vLLM's server does it."""
        leg = next(leg for leg in self._legs.values() if leg.posted is posted)
        if not leg.ended:
            self._on_aborted(leg)
            self._engines[side].abort(leg.request, during_step=self._random.random() < 0.3)

    # ---- what the engines put out

    def _on_output(self, engine: Engine, output: Any) -> None:
        leg = self._legs[output.request_id]
        leg.tokens += output.new_token_ids
        if output.finish_reason is None:
            return
        if leg.ended and not leg.gone:
            self.violations.report("ended twice", f"request {leg.request} at {engine.plan.name}")
        if leg.gone:
            return
        leg.ended = True
        leg.answer = output.kv_transfer_params
        reason = str(output.finish_reason)
        self.ended[reason] = self.ended.get(reason, 0) + 1
        if leg.posted is not None:
            leg.posted.answer(served=reason == "length")
        if reason == "length":
            self._check_tokens(leg)
            return
        self._allow_outlived()
        if leg.state is None or not leg.state.ask.may_fail:
            self.violations.report("failed", f"request {leg.request} of {engine.plan.name} ended with {reason!r}")

    def _check_tokens(self, leg: Leg) -> None:
        tokens, runner = list(leg.prompt), self._engines[leg.side].executor.runner
        for token in itertools.islice(itertools.chain(leg.tokens, itertools.repeat(None)), leg.max_tokens):
            right = [next_token(int(each[-1]), salt_of(leg.request)) for each in runner.digests(tokens, leg.beside)]
            tokens.append(token if token in right else right[-1])
        if STATE in self.plan.prefiller.windows and leg.side == "P" and leg.state and leg.state.ask.route != PLAIN:
            return  # its prefill ends one token early, and its answer means nothing
        if leg.tokens != tokens[len(leg.prompt) :]:
            self.violations.report(
                "wrong tokens", f"request {leg.request}: {leg.tokens}, expected {tokens[len(leg.prompt) :]}"
            )


def where(engine: Engine) -> dict[str, Any]:
    """The engine's messengers, as its own answers name them."""
    addresses = engine.addresses
    listed = ",".join(f"{host}:{port}" for host, port in addresses)
    return {"remote_host": listed if len(addresses) > 1 else addresses[0][0], "remote_port": addresses[0][1]}


def _beginning(ask: Ask) -> dict[str, int]:
    """What names the prefiller's prompt where the decoder's goes on, as the prefiller's own answer does."""
    return {"remote_prompt_tokens": len(ask.prompts[0])} if ask.goes_on else {}
