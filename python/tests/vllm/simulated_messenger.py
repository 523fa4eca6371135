"""A messenger that moves nothing, and checks what an engine's connector tells it against docs/boundary.md.

Tests call requests by name, and the connector calls them by numbers of its own: ``by_name`` translates.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

from by_name import RequestsByName, as_sent

from kv_connector import (
    Arrived,
    Event,
    Failed,
    Granted,
    LeakCheck,
    Log,
    MessengerError,
    Offered,
    Opened,
    Options,
    Prefilled,
    Quarantined,
    Released,
    Stats,
    Stopped,
    Timeline,
)
from kv_connector.runtime.sleep import at_ports_of


class SimulatedMessenger:
    """What happens, and when, is the test's to say: events are those that it adds to ``events``."""

    def __init__(self, options: Options, geometry: Any) -> None:
        self.options = options
        self.geometry = geometry
        self.by_name = RequestsByName()
        self.commands: list[dict[str, Any]] = []
        self.lost: list[Event] = []
        self.raw: list[Any] = []
        """The commands as they came, with numbers."""
        self.events: list[Event] = []
        self.counter_starts: list[int] = []
        self.fenced: list[list[str]] = []
        self.totals: dict[str, float] = {"kv_messenger_fetches_started": 0}
        self.closed = False
        self.closed_why = ""
        self.refuse: set[str] = set()
        """Kinds of commands that are answered with an error."""
        self.drops: list[type] = []
        """Kinds of events of which the next one is lost; the connector then tells ends again."""
        self.unfenced: set[str] = set()
        """Requests whose fence is not reached the first time."""
        self._counter = ctypes.c_uint64(41)
        self.expired: list[str] = []
        """Prefills that had ended as finished, and whose pages wait for no grant any more."""
        self._announced: dict[str, tuple[str, str]] = {}
        self._prefills: dict[str, dict[str, Any]] = {}
        self._owed: dict[str, str] = {}
        """What it has yet to report: ends of prefills and offers, and answers to asks."""
        self._loading: set[str] = set()
        """Requests that are fetched; one that is sent on besides may end as a prefill before its fetch does."""
        self._step = 0
        self._step_open = False
        self._step_start = 0

    @property
    def opened(self) -> Opened:
        address = ctypes.addressof(self._counter)
        port = self.options.listen_port or 45678
        return Opened(1, self.options.engine_id, "7", "127.0.0.1", port, "127.0.0.1", 45679, address)

    def learn(self, metadata: Any) -> None:
        """Takes the names in a step's metadata, by which it calls what it knows."""
        called = self.by_name.learn(metadata)
        for known in (self._announced, self._prefills, self._owed):
            moved = {called.get(request, request): each for request, each in known.items()}
            known.clear()
            known.update(moved)  # type: ignore[arg-type]

    @property
    def count(self) -> int:
        return int(self._counter.value)

    def submit(self, commands: Sequence[Any]) -> None:
        assert not self.closed
        sent = [as_sent(command) for command in commands]
        self.raw += sent
        for command in sent:
            if command["do"] in self.refuse:
                raise MessengerError(f"no {command['do']} today")
        for command in map(self.by_name.command, sent):
            self.commands.append(command)
            getattr(self, "_on_" + command["do"])(command)

    def poll(self) -> list[Event]:
        if "poll" in self.refuse:
            raise MessengerError("no poll today")
        events, self.events = self._kept_events(), []
        return [self.by_name.event(event) for event in events]

    def _kept_events(self) -> list[Event]:
        kept: list[Event] = []
        for event in self.events:
            if type(event) in self.drops:
                self.drops.remove(type(event))
                self.lost.append(event)
            else:
                kept.append(event)
        return kept

    def wait(self, limit_seconds: float) -> None:
        assert limit_seconds > 0
        if not self.events:
            time.sleep(limit_seconds)

    def stats(self) -> Stats:
        return Stats(counters=dict(self.totals), gauges={"kv_messenger_fetches_open": len(self.owes())})

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        assert limit_seconds > 0
        named = {self.by_name.name(request): request for request in requests}
        self.fenced.append(list(named))
        reached = [name for name in named if name not in self.unfenced]
        self.unfenced.difference_update(named)
        for name in reached:
            self._prefills.pop(name, None)
        return [named[name] for name in reached]

    def leak_check(self) -> LeakCheck:
        held = {"prefills": len(self._prefills), "owed": len(self.owes())}
        return LeakCheck(clean=not any(held.values()), held=held)

    def close(self, why: str = "") -> None:
        if "close" in self.refuse:
            raise MessengerError("no close today")
        self.closed, self.closed_why = True, why

    # ---- what the test makes happen

    def arrive(self, request: str) -> None:
        self._loading.remove(request)
        self.events.append(Arrived(request, 1))

    def fail(self, request: str, reason: str = "simulated") -> None:
        self._loading.remove(request)
        self.events.append(Failed(request, reason))

    def quarantine(self, request: str, reason: str = "simulated silence") -> None:
        assert request in self._loading
        self.events.append(Quarantined(request, reason))

    def release(self, request: str) -> None:
        assert self._owed.pop(request) == "prefill"
        self._prefills.pop(request, None)
        self.events.append(Released(request))

    def offer(self, held_tokens: int, reason: str = "") -> None:
        """Another engine answers the last question."""
        ask = self.of_kind("ask")[-1]["request"]
        assert self._owed.pop(ask) == "offered"
        self.events.append(Offered(ask, held_tokens, reason))

    def grant(self, request: str) -> None:
        assert request in self._announced
        self.events.append(Granted(request, 20, 0))

    def stop(self, request: str, reason: str = "simulated") -> None:
        assert request in self._announced
        self.events.append(Stopped(request, reason))

    def prefilled(self, transfer: str) -> None:
        expected = [command for command in self.of_kind("expect") if command["transfer"] == transfer]
        self.events.append(Prefilled(transfer, expected[-1]["promptDigest"]))

    def say(self, level: Any, message: str) -> None:
        self.events.append(Log(level, message))

    def draw(self, transfer: str, **fields: object) -> None:
        self.events.append(Timeline(transfer, fields))

    def owes(self) -> dict[str, str]:
        return {**self._owed, **dict.fromkeys(self._loading, "fetch")}

    def chunks_of(self, request: str) -> list[dict[str, Any]]:
        steps = [command for command in self.commands if command["do"] == "step"]
        return [chunk for step in steps for chunk in step["chunks"] if chunk["request"] == request]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [command for command in self.commands if command["do"] == kind]

    def outcomes(self) -> dict[str, str]:
        """How the prompts that were announced have ended, by digest, in the order of their announcements."""
        announced = {each["request"]: each["promptDigest"] for each in self.raw if each["do"] == "announce"}
        ended = {each["request"]: each["outcome"] for each in self.raw if each["do"] == "prefillEnded"}
        return {digest: ended[number] for number, digest in announced.items()}

    # ---- the contract

    def _on_compared(self, command: dict[str, Any]) -> None:
        assert command["outcome"] in ("equal", "different", "unjudged")
        assert command["differenceMillionths"] >= 0
        assert command["prefillers"]

    def _on_pullEnded(self, command: dict[str, Any]) -> None:  # noqa: N802
        assert command["outcome"]
        assert command["tokens"] >= 0
        assert command["askMicros"] >= 0
        assert command["pullMicros"] >= 0

    def _on_prices(self, command: dict[str, Any]) -> None:
        assert command.get("computePicosPerToken", 0) >= 0
        for source in command["sources"]:
            numbers = [number for name, number in source.items() if name != "source"]
            assert all(type(number) is int and 0 <= number <= 2**53 for number in numbers), source

    def _on_refuted(self, command: dict[str, Any]) -> None:
        assert command["fetches"] > 0

    def _on_step(self, command: dict[str, Any]) -> None:
        assert not self._step_open, "a step began before the last one ended"
        assert command["step"] > self._step
        assert command["counterStart"] == self.count
        assert command["chunks"], "a step without chunks need not be told"
        self._step, self._step_open, self._step_start = command["step"], True, self.count
        self.counter_starts.append(self.count)
        for chunk in command["chunks"]:
            self._on_chunk(chunk)

    def _on_chunk(self, chunk: dict[str, Any]) -> None:
        request = chunk["request"]
        assert self._owed.get(request) is None, "chunks of a request that has ended"
        assert request not in self._loading, "chunks of a request that is fetched"
        prefill = self._prefills.get(request)
        if prefill is None:
            prefill = self._prefills[request] = {"end": 0, "pages": [], "prompt": chunk["promptTokens"]}
        assert self._announced[request] == (chunk["transfer"], chunk["promptDigest"])
        assert chunk["cachedTokens"] == 0, "vLLM proves of no page that an earlier pass has written it"
        page_tokens = self.geometry["groups"][0]["pageTokens"]
        assert chunk["firstToken"] == prefill["end"]
        assert chunk["firstToken"] < chunk["endToken"] <= chunk["promptTokens"] == prefill["prompt"]
        prefill["end"] = chunk["endToken"]
        (group,) = chunk["groups"]
        assert group["firstPage"] == len(prefill["pages"]), "allowed, and pointless"
        prefill["pages"] += group["pages"]
        assert len(prefill["pages"]) * page_tokens >= chunk["endToken"]
        assert len(set(prefill["pages"])) == len(prefill["pages"])
        assert all(0 <= page < self.geometry["groups"][0]["pageCount"] for page in prefill["pages"])

    def _on_stepEnded(self, command: dict[str, Any]) -> None:  # noqa: N802
        assert self._step_open
        assert command["step"] == self._step
        assert command["counterEnd"] == self.count, "on CPU all that is queued is complete"
        assert self.count - self._step_start <= len(self.geometry["ranks"][0]["layers"])
        self._step_open = False

    def _on_stepFailed(self, command: dict[str, Any]) -> None:  # noqa: N802
        assert self._step_open
        assert command["step"] == self._step
        assert self.count - self._step_start > len(self.geometry["ranks"][0]["layers"]), "taken for its layers"
        self._step_open = False

    def _on_announce(self, command: dict[str, Any]) -> None:
        request = command["request"]
        assert request not in self._prefills, "a prompt is announced that has begun"
        assert request not in self._owed
        assert len(command["promptDigest"]) == 32
        self._announced[request] = command["transfer"], command["promptDigest"]

    def _on_expect(self, command: dict[str, Any]) -> None:
        assert command.keys() == {"do", "transfer", "promptDigest", "prefillers"}

    def _on_prefillEnded(self, command: dict[str, Any]) -> None:  # noqa: N802
        request = command["request"]
        if Released(request) in self.lost:
            self.events.append(Released(request))
            return
        assert request in self._announced, "the end of a prompt that is not known"
        if self._owed.get(request) == "prefill" and command["outcome"] == "failed":
            self.expired.append(request)
            return
        assert request not in self._owed, "a prefill ended twice"
        if command["outcome"] == "finished":
            assert self._prefills[request]["end"] == self._prefills[request]["prompt"]
        self._owed[request] = "prefill"

    def _on_fetch(self, command: dict[str, Any]) -> None:
        assert command["request"] not in self._loading, "a request is fetched twice"
        assert command["request"] not in self._owed, "a request is fetched that has ended"
        page_tokens = self.geometry["groups"][0]["pageTokens"]
        assert command["firstToken"] % page_tokens == 0
        assert command["firstToken"] < command["promptTokens"]
        needed = -(-command["promptTokens"] // page_tokens) - command["firstToken"] // page_tokens
        (pages,) = (group["pages"] for group in command["groups"])
        assert len(pages) == needed
        assert len(set(pages)) == len(pages)
        assert len(command["promptDigest"]) == 32
        assert ("cacheSalt" in command) == ("priority" in command) == ("promptTokenIds" in command)
        self._loading.add(command["request"])

    def _on_ask(self, command: dict[str, Any]) -> None:
        assert command["request"] not in self._owed
        assert len(command["promptDigest"]) == 32
        assert len(command["prefillers"]) == 1
        assert command["promptTokenIds"]
        assert command["limitMillis"] > 0
        self._owed[command["request"]] = "offered"

    def _on_offer(self, command: dict[str, Any]) -> None:
        assert command["request"] not in self._owed
        assert not self._step_open, "an offer waits for a pass"
        assert bool(command["heldTokens"]) == bool(command["groups"]) == (not command["reason"])
        if command["heldTokens"]:
            (group,) = command["groups"]
            assert group["firstPage"] == 0
            assert len(group["pages"]) * self.geometry["groups"][0]["pageTokens"] == command["heldTokens"]
            self._owed[command["request"]] = "prefill"

    def _on_withdraw(self, command: dict[str, Any]) -> None:
        if self._owed.get(command["request"]) == "prefill":
            self.release(command["request"])

    def _on_decline(self, command: dict[str, Any]) -> None:
        assert command.keys() == {"do", "transfer", "promptDigest", "prefillers"}
        asked = [ask["request"] for ask in self.of_kind("ask") if ask["transfer"] == command["transfer"]]
        for ask in asked:
            self._owed.pop(ask, None)

    def _on_reject(self, command: dict[str, Any]) -> None:
        assert command["prefillers"]

    def _on_abandon(self, command: dict[str, Any]) -> None:
        request = command["request"]
        ended = [event.request for event in self.events + self.lost if isinstance(event, Arrived | Failed)]
        assert request in self._loading or request in ended, "an unknown request is abandoned"

    def _on_reportEnd(self, command: dict[str, Any]) -> None:  # noqa: N802
        if command["request"] not in self._loading:
            self.events.append(Failed(command["request"], "it is not open any more"))


class SimulatedStandIn:
    """What is at a messenger's ports while its engine sleeps."""

    def __init__(self, options: Any, opened: Any, logger: Any) -> None:  # noqa: ARG002
        self.options = at_ports_of(opened, options)
        self.open = True

    def close(self) -> None:
        self.open = False
