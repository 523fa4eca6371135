"""All transfers of one SGLang rank through its messenger; independent of SGLang.

Called by the scheduler's thread only. It blocks only in the fence after a failure, and in ``settle``. A transfer's
progress is read from its own object; ``drain`` brings the objects up to date.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kv_connector.runtime.client import MessengerClient
from kv_connector.runtime.commands import (
    Abandon,
    Announce,
    Chunk,
    ChunkPages,
    Command,
    ComparisonOutcome,
    Computed,
    Decline,
    Fetch,
    FetchPages,
    PrefillEnded,
    PrefillerAddress,
    Refuted,
    ReportEnd,
    Step,
    StepEnded,
    StepFailed,
    compared,
)
from kv_connector.runtime.facade import (
    Arrived,
    Asked,
    Connected,
    Event,
    Failed,
    Granted,
    LeakCheck,
    Log,
    MessengerPort,
    Offered,
    Opened,
    Quarantined,
    Released,
    Stopped,
    Timeline,
    write_to_log,
)
from kv_connector.sglang.client_fields import NO_ROOM
from kv_connector.sglang.unsettled import Unsettled

DRAIN_INTERVAL_SECONDS = 0.0002
"""The shortest time between two polls of the messenger, so that one serves all requests of a scheduler's round."""
SETTLE_INTERVAL_SECONDS = 0.001
FENCE_LIMIT_SECONDS = 1.0
"""Reached only if a peer hangs while it receives a metadata row; all KV of the request has been sent by then."""

PROOF_SECONDS = 2.0
"""How long a failed fetch waits for that proof, after which its prefiller may be asked again; then it fails."""
UNHEARD_SECONDS = 60.0
"""How much later than its own limit the messenger may report the end of a fetch: a lost peer is seen within seconds."""

_NANOS = 1e9


@dataclass(slots=True, eq=False)
class Outgoing:
    """A request whose KV this rank computes and sends."""

    request: str
    transfer: str
    prompt_digest: str = ""
    granted: Granted | None = None
    failure: str = ""
    """Why it will not be sent; "" if it may be."""
    ended: bool = False
    """Whether its end has been submitted to the messenger, or need not be."""
    end: PrefillEnded | None = None
    """The command that reports its end; submitted again if no event about it came until ``end_due_seconds``."""
    end_due_seconds: float = 0.0
    released: bool = False
    """Whether nothing reads its pages any more."""
    bytes_sent: int = 0
    """The bytes sent to all ranks of the decoder."""
    tail_seconds: float | None = None
    """The time from the end of the last forward pass until everything was sent, to the slowest rank of the decoder."""

    @classmethod
    def of_another_rank(cls) -> Outgoing:
        """A request that another rank sends and was never submitted to this messenger."""
        return cls(request="", transfer="", ended=True, released=True)

    @classmethod
    def refused(cls, reason: str) -> Outgoing:
        """A request that is not sent and was never submitted to the messenger."""
        return cls(request="", transfer="", failure=reason, ended=True, released=True)


@dataclass(slots=True, eq=False)
class Incoming:
    """A request whose KV this rank receives."""

    request: str
    room: int
    deadline_seconds: float = math.inf
    """The messenger has reported its end before; else it is asked for it, then and again and again."""
    arrived: bool = False
    failure: str = ""
    quarantine: str = ""
    """Why it will not arrive, while its pages may still be written to; "" unless that is so."""
    quarantined_at_seconds: float = 0.0
    sessions: int = 0
    """How many sessions with messengers had been opened when it arrived."""

    @property
    def ended(self) -> bool:
        """Whether nothing writes to its pages any more."""
        return self.arrived or bool(self.failure)


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """One request's part of a forward pass."""

    chunk: Chunk
    """The chunk in the command to the messenger."""
    on_taken: Callable[[], None]
    """Called when the messenger has accepted it."""


class PullEvents(Protocol):
    """What is told of pulls; called on the scheduler's thread."""

    def on_event(self, event: Asked | Offered) -> None:
        """A question of another engine, or another engine's answer."""

    def on_released(self, request: str) -> None:
        """Nothing reads the pages of an offer any more."""

    def on_lost(self) -> None:
        """The messenger is closed."""


class MessengerLostError(Exception):
    """The messenger is lost. Raised on the scheduler's thread, it ends the engine, which could not move KV any more."""


class Exchange:
    """Sends and receives KV. Each transfer ends exactly once, whatever fails. Used by the scheduler's thread only."""

    def __init__(
        self,
        messenger: MessengerPort,
        logger: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        *,
        exit_when_lost: bool = True,
        unheard_seconds: float = UNHEARD_SECONDS,
    ) -> None:
        """``unheard_seconds``: how much later than its own limit the messenger may report an end."""
        self._unheard_seconds = unheard_seconds
        self._waits_due = clock() + unheard_seconds / 4
        self._messenger = messenger
        self._client = MessengerClient(messenger, logger, self._on_lost)
        self._logger = logger
        self._clock = clock
        self._count = itertools.count(1)
        self._outgoing: dict[str, Outgoing] = {}
        self._incoming: dict[str, Incoming] = {}
        self._drain_due = clock()
        self._exit_when_lost = exit_when_lost
        self._sessions = 0
        self.on_connected: Callable[[PrefillerAddress, str, int], None] | None = None
        """Called with a messenger's address, its incarnation and the number of sessions opened so far."""
        self.pulls: PullEvents | None = None

    # ---- prefiller

    def announce(self, room: int, prompt_digest: str = "") -> Outgoing:
        """Announces a queued request, which then waits for its decoder's grant."""
        out = Outgoing(f"{room}#{next(self._count)}", str(room), prompt_digest)
        self._outgoing[out.request] = out
        if not self._client.submit(Announce(out.request, out.transfer, prompt_digest)):
            self._lose(out)
        return out

    def computed(self, out: Outgoing, prompt_tokens: int, end_token: int, groups: Sequence[ChunkPages]) -> None:
        """The KV of the tokens before ``end_token`` is complete; ``groups`` has the new pages of each group."""
        if out.ended:
            return
        if not self._client.submit(
            Computed(out.request, out.transfer, out.prompt_digest, prompt_tokens, end_token, groups)
        ):
            self._lose(out)

    def step(self, step: int, counter_start: int, chunks: Sequence[Chunk]) -> bool:
        """Begins a forward pass that computes these chunks; False if they must be reported after it instead."""
        return self._client.submit(Step(step, counter_start, chunks))

    def step_failed(self, step: int) -> None:
        """The forward pass failed: nothing of it that was not sent yet is sent."""
        self._client.end(StepFailed(step))

    def step_ended(self, step: int, counter_end: int) -> None:
        """The forward pass is over."""
        self._client.end(StepEnded(step, counter_end))

    def finish(self, out: Outgoing, context_slot: int) -> None:
        """The whole prompt is computed and its context row is written, which is all that the decoder needs."""
        if not out.ended:
            self._end(out, PrefillEnded(out.request, "finished", context_slot))

    def abort(self, out: Outgoing, reason: str) -> None:
        """Aborts a request; pages that the messenger knows may be read until ``released``."""
        if out.released:
            return
        out.failure = out.failure or reason
        self._end(out, PrefillEnded(out.request, "aborted"))

    def fence(self, out: Outgoing) -> None:
        """Returns when an aborted request can no longer complete on its decoder.

        This takes one duty cycle of the messenger, unless the metadata rows are being sent: all KV has left by then,
        and the fence waits for the rows. KV that is still being read goes to pages that the decoder will not use
        without the rows.
        """
        if out.released:
            return
        fenced = self._client.fence([out.request], FENCE_LIMIT_SECONDS)
        if fenced is None:
            return
        if out.request not in fenced:
            self._logger.warning(
                "the metadata of room %s is still being read after %g s, by a decoder that hangs",
                out.transfer,
                FENCE_LIMIT_SECONDS,
            )
        out.released = True
        self._outgoing.pop(out.request, None)

    def _end(self, out: Outgoing, end: PrefillEnded) -> None:
        out.ended, out.end = True, end
        out.end_due_seconds = self._clock() + self._unheard_seconds
        self._client.end(end)

    def _lose(self, out: Outgoing) -> None:
        out.failure = out.failure or self._dead or "the messenger refused it"
        if not out.ended and not self._dead:
            self._end(out, PrefillEnded(out.request, "failed"))

    # ---- decoder

    def fetch(
        self,
        room: int,
        prefillers: Sequence[PrefillerAddress],
        *,
        prompt_tokens: int,
        first_token: int,
        pages: Sequence[Sequence[int]],
        context_slot: int,
        limit_seconds: float,
        prompt_digest: str = "",
    ) -> Incoming:
        """Requests the KV of tokens ``[first_token, prompt_tokens)`` from all ranks that hold a part of it.

        The pages, one list for each group, may be written to until the transfer has ended.
        """
        deadline_seconds = self._clock() + limit_seconds + self._unheard_seconds
        incoming = Incoming(f"{room}#{next(self._count)}", room, deadline_seconds)
        command = Fetch(
            request=incoming.request,
            transfer=str(room),
            prompt_digest=prompt_digest,
            prefillers=prefillers,
            prompt_tokens=prompt_tokens,
            first_token=first_token,
            groups=[FetchPages(list(of_group)) for of_group in pages],
            limit_millis=max(1, round(limit_seconds * 1000)),
            context_slot=context_slot,
        )
        return self._begin(incoming, command)

    def _begin(self, incoming: Incoming, command: Fetch) -> Incoming:
        if self._client.submit(command):
            self._incoming[incoming.request] = incoming
        else:
            incoming.failure = self._dead or "the messenger did not take the fetch"
        return incoming

    def fetch_offered(
        self,
        transfer: tuple[str, str],
        prefillers: Sequence[PrefillerAddress],
        tokens: tuple[int, int],
        pages: Sequence[FetchPages],
        *,
        limit_seconds: float,
        answer_seconds: float,
    ) -> Incoming:
        """Requests what another engine has offered: the KV of ``tokens``, from the first to before the last of the two.

        ``transfer`` is its id and the digest of what was asked for. No metadata goes with it.
        """
        deadline_seconds = self._clock() + limit_seconds + self._unheard_seconds
        incoming = Incoming(f"{transfer[0]}#{next(self._count)}", NO_ROOM, deadline_seconds)
        command = Fetch(
            request=incoming.request,
            transfer=transfer[0],
            prompt_digest=transfer[1],
            prefillers=prefillers,
            prompt_tokens=tokens[1],
            first_token=tokens[0],
            groups=pages,
            limit_millis=max(1, round(limit_seconds * 1000)),
            answer_micros=round(answer_seconds * 1e6),
            pages_micros=0,
        )
        return self._begin(incoming, command)

    def wait(self, limit_seconds: float) -> None:
        """Blocks until the messenger has events, or until the limit; any thread may wait."""
        self._messenger.wait(limit_seconds)

    def submit(self, command: Command) -> bool:
        """Gives the messenger a command of a pull; False if it takes none any more."""
        return self._client.submit(command)

    def abandon(self, incoming: Incoming) -> None:
        """Abandons a request; its pages must be kept until it has ended."""
        if not incoming.ended:
            self._client.submit(Abandon(incoming.request))

    def decline(self, room: int, prefillers: Sequence[PrefillerAddress], prompt_digest: str = "") -> None:
        """Tells the prefillers that this room will not fetch the prompt."""
        self._client.submit(Decline(str(room), prompt_digest, prefillers))

    def count_compared(self, outcome: ComparisonOutcome, worst: float, prefillers: Sequence[PrefillerAddress]) -> None:
        """Counts a comparison of received with own KV; see ``commands.compared``."""
        self._client.submit(compared(outcome, worst, prefillers[0]))

    def count_refuted(self) -> None:
        """Counts a fetch that was not begun, because its prefiller computes another KV."""
        self._client.submit(Refuted(1))

    def why_without_proof(self, incoming: Incoming) -> str:
        """Why a fetch fails although its pages may still be written to, once the proof is late; "" before."""
        late = self._clock() >= incoming.quarantined_at_seconds + PROOF_SECONDS
        return incoming.quarantine if late and not incoming.ended else ""

    def is_quiet(self, room: int) -> bool:
        """Whether nothing writes to this room's pages any more."""
        self.drain()
        return all(incoming.room != room for incoming in self._incoming.values())

    # ---- progress

    def drain(self) -> None:
        """Brings all transfers up to date. Raises MessengerLostError if a lost messenger is to end the engine."""
        now = self._clock()
        if not self._dead and now >= self._drain_due:
            self._drain_due = now + DRAIN_INTERVAL_SECONDS
            self._client.poll(self._on)
            if not self._dead:
                self._look_after_waits(now)
        if self._dead and self._exit_when_lost:
            raise MessengerLostError(self._dead)

    def held(self) -> dict[str, int]:
        """The number of transfers in each state; for leak checks at rest."""
        kinds = {"outgoing": len(self._outgoing), "incoming": len(self._incoming)}
        return {name: count for name, count in kinds.items() if count}

    @property
    def opened(self) -> Opened:
        """The messenger's addresses."""
        return self._messenger.opened

    def leak_check(self) -> LeakCheck:
        """What the messenger holds for unfinished work."""
        return self._messenger.leak_check()

    def settle(self, limit_seconds: float, *, of_peers: bool = True) -> Unsettled | None:
        """Blocks until nothing is held for any request; returns what is still held after the limit, else None.

        Without ``of_peers`` it waits for this rank's own requests alone.
        """
        deadline = self._clock() + limit_seconds
        while True:
            self.drain()
            leaks = self.leak_check()
            if not self.held() and (leaks.clean or not of_peers):
                return None
            if self._clock() >= deadline:
                return Unsettled(self.held(), {name: count for name, count in leaks.held.items() if count})
            time.sleep(SETTLE_INTERVAL_SECONDS)

    def close(self, why: str = "") -> None:
        """Closes the messenger; ``why`` is for peers."""
        self._messenger.close(why)

    # ---- inside

    @property
    def _dead(self) -> str:
        reason = self._client.lost_because
        return f"the messenger was given up: {reason}" if reason else ""

    def _look_after_waits(self, now: float) -> None:
        """Submits unanswered ends of prefills again, and asks for the ends of fetches that were not reported in time.

        Whether such a fetch still writes is not known: its request fails, and its pages wait for the answer.
        """
        if now < self._waits_due:
            return
        self._waits_due = now + self._unheard_seconds / 4
        for out in self._outgoing.values():
            if out.end is not None and now >= out.end_due_seconds:
                out.end_due_seconds = now + self._unheard_seconds
                self._client.submit(out.end)
        for incoming in self._incoming.values():
            if now >= incoming.deadline_seconds:
                self._ask_for_end(incoming, now)

    def _ask_for_end(self, incoming: Incoming, now: float) -> None:
        if not incoming.quarantine:
            incoming.quarantine = "the messenger has reported no end of it within its limit"
            incoming.quarantined_at_seconds = now
            self._client.submit(Abandon(incoming.request))
        incoming.deadline_seconds = now + self._unheard_seconds
        self._client.submit(ReportEnd(incoming.request))  # time alone frees no pages: the answer is the proof

    def _on(self, event: Event) -> None:
        match event:
            case Granted(request):
                if (out := self._outgoing.get(request)) is not None:
                    out.granted = event
            case Stopped(request, reason):
                if (out := self._outgoing.get(request)) is not None:
                    out.failure = out.failure or reason
            case Released(request):
                if (out := self._outgoing.pop(request, None)) is not None:
                    out.released = True
                elif self.pulls is not None:
                    self.pulls.on_released(request)
            case Asked() | Offered():
                if self.pulls is not None:
                    self.pulls.on_event(event)
            case Arrived(request):
                if (incoming := self._incoming.pop(request, None)) is not None:
                    incoming.arrived, incoming.sessions = True, self._sessions
            case Failed(request, reason):
                if (incoming := self._incoming.pop(request, None)) is not None:
                    incoming.failure = reason or "the transfer failed"
            case Connected(host, port, incarnation):
                self._sessions += 1
                if self.on_connected is not None:
                    self.on_connected(PrefillerAddress(host, port), incarnation, self._sessions)
            case Quarantined(request, reason):
                if (incoming := self._incoming.get(request)) is not None:
                    incoming.quarantine = reason or "its pages may still be written to"
                    incoming.quarantined_at_seconds = self._clock()
                    incoming.deadline_seconds = incoming.quarantined_at_seconds + self._unheard_seconds
            case Timeline():
                self._on_timeline(event.fields)
                write_to_log(event, self._logger)
            case Log():
                write_to_log(event, self._logger)

    def _on_timeline(self, fields: Mapping[str, Any]) -> None:
        out = self._outgoing.get(fields.get("request", ""))
        if out is not None and fields.get("side") == "prefiller":
            out.bytes_sent += int(fields["bytes"])
            if fields.get("forwardEndNs"):
                tail_seconds = max(0, fields["lastLeftNs"] - fields["forwardEndNs"]) / _NANOS
                out.tail_seconds = max(tail_seconds, out.tail_seconds or 0.0)

    def _on_lost(self, closed: bool) -> None:
        if not closed:
            return
        for out in self._outgoing.values():
            out.failure, out.released = out.failure or self._dead, True
        for incoming in self._incoming.values():
            incoming.failure = self._dead
        self._outgoing.clear()
        self._incoming.clear()
        if self.pulls is not None:
            self.pulls.on_lost()
