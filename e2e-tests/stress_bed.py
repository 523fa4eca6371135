"""Two prefillers, a decoder and a plain vLLM, for the stress of pulls: how they start, rest, and get other weights."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

from bed import Side, messenger, start_messengers
from conversations import Comparison, Engine, Seen
from faults import Gate, still_serves
from make_model import TinyModel, cached_model
from prompts import cache_home
from pulls_bed import ANSWER_TOKENS, EXTRA, OPTIONS, PAGE_TOKENS, Engines
from server_process import Server, greedy_completion, start_all, wait_until
from servers import EngineOptions, engine
from warm_starts import WarmServer

SEQUENCES_MAX: Final = 4
LIMIT_SECONDS: Final = 600.0
SILENCE_LIMIT_SECONDS: Final = 10.0  # the default
OFFER_LIMIT_SECONDS: Final = 30.0
"""Longer than any engine stands still: what ends an offer meanwhile is not this limit."""
HELD_FOR_SECONDS: Final = 1.0
WEIGHTS: Final = (TinyModel(), TinyModel(seed=21))
PULLS_ENDED: Final = "kv_messenger_pulls_ended_total"
PROVING_PULLS_MAX: Final = 5
REASONS: Final = (
    *("arrived", "failed", "not_held", "not_worth", "late", "expired", "unreachable", "busy", "misfit", "unproven"),
    *("proves", "aborted", "unavailable", "malformed"),
)


def is_emptied(server: Server) -> bool:
    return bool(server.post("/reset_prefix_cache", {}).get("success"))


@dataclass
class Bed:
    engines: list[Engine]
    """Two prefillers and the decoder."""
    gates: dict[str, Gate]
    comparison: Comparison
    plain: Server
    pairs: Engines
    weights: int = 0
    counted: Counter[str] = field(default_factory=Counter)
    held_longest_seconds: float = 0.0
    answer_tokens: int = ANSWER_TOKENS

    @staticmethod
    def started(folder: Path, stack: ExitStack) -> Bed:
        model = cached_model(cache_home(), WEIGHTS[0])
        messengers, gates = [], {}
        for index, name in enumerate(("prefiller-a", "prefiller-b", "decoder")):
            gates[name] = Gate(folder / f"held-{name}")
            limits = {"silence_limit_seconds": SILENCE_LIMIT_SECONDS, "offer_limit_seconds": OFFER_LIMIT_SECONDS}
            options = {**OPTIONS, "sequences_max": SEQUENCES_MAX}
            side = Side(
                name,
                "kv_both",
                index % 2,
                extra={**EXTRA, **limits, "jvm_options": gates[name].jvm_options},
                options=options,
            )
            messengers.append(messenger(side, model, folder))
        environment = dict(OPTIONS["environment"])
        plain = engine(
            "plain", EngineOptions(model, page_tokens=PAGE_TOKENS, environment=environment), folder, kind=WarmServer
        )
        stack.callback(plain.stop)
        for gate in gates.values():
            stack.callback(gate.open)
        start_messengers(stack, messengers)
        start_all([plain], lambda line: print(line, flush=True))
        engines = [Engine(each) for each in messengers]
        for each in engines:
            each.up.set()
        return Bed(engines, gates, Comparison(plain, Seen()), plain, Engines(messengers))

    def body(self, prompt: str) -> dict[str, Any]:
        return greedy_completion(prompt, self.answer_tokens)

    def prove(self, asker: Engine, source: Engine) -> None:
        """Pulls until one arrives: the first may be compared, unless a conversation's was."""
        to, of = self.engines.index(asker), self.engines.index(source)
        for _ in range(PROVING_PULLS_MAX):
            before = asker.messenger.metric(PULLS_ENDED, reason="arrived")
            history = self.pairs.prompt(3 * PAGE_TOKENS)
            self.pairs.ask(of, history)
            self.pairs.ask(to, f"{history} {self.pairs.prompt(5)}", of)
            still_serves(asker.server)  # its page shows its last step
            if asker.messenger.metric(PULLS_ENDED, reason="arrived") > before:
                return
        self.comparison.seen.add("no pull", f"{asker.name} pulls nothing from {source.name}: {self.shown()}")

    def restart(self, killed: Engine) -> None:
        start_all([killed.server], lambda line: None)
        killed.up.set()

    def load(self, weights: int) -> None:
        """Gives all servers these weights, if they have others. Their caches are to be emptied afterwards.

        They are not paused: vLLM's pause waits for what is being sent, which may stand still here.
        """
        if weights == self.weights:
            return
        self.weights = weights
        path = str(cached_model(cache_home(), WEIGHTS[weights]))
        for server in (self.plain, *(each.server for each in self.engines)):
            answer = server.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": path}})
            assert "error" not in answer, answer

    def empty(self) -> None:
        """Nothing may be running: vLLM refuses then."""
        for server in (self.plain, *(each.server for each in self.engines)):
            emptied = partial(is_emptied, server)
            wait_until(emptied, LIMIT_SECONDS, f"{server.name}'s cache is emptied")

    def rest(self) -> None:
        """Waits until nothing is held, and counts what took longer than a second after the last answer."""
        since_seconds = time.monotonic()
        last: dict[str, dict[str, float]] = {}
        while held := self._held():
            last = held
            if time.monotonic() - since_seconds > LIMIT_SECONDS:
                self.comparison.seen.add("held", f"held for {LIMIT_SECONDS:.0f} s: {last}")
                break
            Event().wait(0.02)
        seconds = time.monotonic() - since_seconds if last else 0.0
        self.held_longest_seconds = max(self.held_longest_seconds, seconds)
        if seconds > HELD_FOR_SECONDS:
            self.counted["held for more than 1 s"] += 1
            print(f"  held for {seconds:.1f} s, last of all {last}", flush=True)
        for each in self.engines:
            still_serves(each.server)  # its page shows its last step
            each.messenger.wait_at_rest()

    def _held(self) -> dict[str, dict[str, float]]:
        held = {each.name: each.messenger.held_by_messengers() for each in self.engines}
        return {name: what for name, what in held.items() if what}

    def shown(self) -> str:
        seen = [f"{count} {what}" for what, count in (self.comparison.seen.counted + self.counted).items()]
        return f"{', '.join(seen)}; held for {self.held_longest_seconds:.1f} s at most; pulls: {self._pulls()}"

    def _pulls(self) -> str:
        """What came of the hints at the engines as they run now."""
        counts = {
            reason: sum(each.messenger.metric(PULLS_ENDED, reason=reason) for each in self.engines)
            for reason in REASONS
        }
        return ", ".join(f"{count:.0f} {reason}" for reason, count in counts.items() if count)

    def ends_well(self) -> None:
        """All engines run, and every one pulls from every other one."""
        self.load(0)
        self.empty()
        for asker in self.engines:
            for source in self.engines:
                if asker is not source:
                    self.prove(asker, source)
        self.rest()
