"""What a prefiller's messenger does with its engine's prompts and with decoders' grants: docs/protocol.md in short."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kv_connector import Granted, Released, Stopped
from kv_connector.runtime.commands import (
    Announce,
    Chunk,
    ChunkPages,
    Computed,
    PrefillEnded,
    Step,
    StepEnded,
    StepFailed,
)
from kv_connector.sglang.pool_kinds import STATE, WINDOWED
from sglang_loop.network import Write
from sglang_loop.pools import LAYERS

if TYPE_CHECKING:
    from sglang_loop.messenger import Delivery, Grant, Key, SimulatedMessenger
    from sglang_loop.network import Session

MASK = (1 << 64) - 1
ROW = (0, 0, -1)
"""The place of the metadata among a delivery's writes."""


@dataclass(eq=False)
class StepInFlight:
    index: int
    start: int
    end: int | None = None
    over: bool = False


@dataclass(eq=False)
class Prefill:
    """A request of the engine, from its announcement on."""

    request: str
    key: Key
    begun: float
    pages: dict[int, int] = field(default_factory=dict)
    beside: dict[int, int] = field(default_factory=dict)
    """Those of the second pool that a decoder needs, by position."""
    prompt_tokens: int = 0
    computed_end: int = 0
    steps: list[tuple[StepInFlight, int]] = field(default_factory=list)
    """Those in flight, with the token up to which each computes."""
    slot: int = -1
    outcome: str = ""
    ended_at: float = 0.0
    contradicted_at: float | None = None
    """When a grant of another prompt was declined: its decoder may ask once more, by the prompt's present name."""
    concluded: bool = False
    stopped: str = ""
    answered: set[int] = field(default_factory=set)
    """The decoder's ranks that have granted or declined."""
    needing: set[int] | None = None
    """Those that have to; None = no decoder is known."""
    decoder: str = ""
    deliveries: list[Delivery] = field(default_factory=list)

    @property
    def awaits_grants(self) -> bool:
        return not self.stopped and (self.needing is None or not self.needing <= self.answered)

    @property
    def is_quiet(self) -> bool:
        return all(each.state in ("sent", "answered") and not each.in_flight for each in self.deliveries)


class Prefills:
    """The prefilling half of one messenger."""

    def __init__(self, messenger: SimulatedMessenger) -> None:
        self._messenger = messenger
        self._network = messenger.network
        self._open: dict[str, Prefill] = {}
        self._named: set[str] = set()
        self._ended: set[str] = set()
        self.waiting: list[Grant] = []
        self._given_up: dict[Key, set[int]] = {}
        """Ranks that had not answered when an attempt was given up."""
        self._dismissed: dict[Key, tuple[set[int], set[int], float]] = {}
        self._heard: set[Key] = set()
        self._steps: list[StepInFlight] = []
        self._last_step = 0

    def count(self) -> int:
        return len(self._open)

    @property
    def is_idle(self) -> bool:
        return not (self._open or self.waiting or self._steps)

    # ---- from the engine

    def announce(self, command: Announce) -> None:
        assert command.request not in self._named, "a name is given twice"
        self._named.add(command.request)
        key = (command.transfer, command.prompt_digest)
        if any(_may_mean(other.key, key) for other in self._open.values()):
            self._messenger.report(Stopped(command.request, "another request with this transfer id is being sent"))
            return
        prefill = self._open[command.request] = Prefill(command.request, key, self._network.now)
        self._heard.add(key)
        ranks, needing, until = self._dismissed.pop(key, (set(), set(), 0.0))
        if ranks and self._network.now < until:
            prefill.answered, prefill.needing = set(ranks), set(needing)
        for grant in [grant for grant in self.waiting if self._takes(prefill, grant)]:
            if self._takes(prefill, grant):
                self.waiting.remove(grant)
                self._attach(prefill, grant)
        if prefill.needing is not None and not prefill.awaits_grants and not prefill.deliveries:
            self._stop(prefill, "its decoder does not fetch it")

    def computed(self, command: Computed) -> None:
        prefill = self._prefill_of(command)
        if prefill is not None:
            self._take_pages(prefill, command)
            prefill.computed_end = max(prefill.computed_end, command.end_token)

    def step(self, command: Step) -> None:
        assert command.chunks, "a step without chunks need not be reported"
        assert command.step > self._last_step, "steps are reported in order"
        assert not self._steps or self._steps[-1].end is not None, "a step began before the last one was queued"
        self._last_step = command.step
        step = StepInFlight(command.step, command.counter_start)
        self._steps.append(step)
        for chunk in command.chunks:
            prefill = self._prefill_of(chunk)
            if prefill is not None:
                known = max([prefill.computed_end, *(end for _step, end in prefill.steps)])
                first = chunk.groups[0].first_page * self._messenger.page_tokens
                assert chunk.first_token <= max(known, first), "a gap between tokens"
                self._take_pages(prefill, chunk)
                prefill.steps.append((step, chunk.end_token))

    def step_ended(self, command: StepEnded) -> None:
        for step in self._steps:
            if step.index == command.step:
                step.end = command.counter_end

    def step_failed(self, command: StepFailed) -> None:
        failed = [step for step in self._steps if step.index == command.step]
        self._steps = [step for step in self._steps if step not in failed]
        for prefill in list(self._open.values()):
            if any(step in failed for step, _end in prefill.steps):
                self._stop(prefill, "the prefiller's forward pass failed")

    def _prefill_of(self, chunk: Chunk | Computed) -> Prefill | None:
        prefill = self._open.get(chunk.request)
        if prefill is None:
            assert chunk.request in self._named, "pages of a request that was not announced"
            assert chunk.request not in self._ended, "pages of a request that has ended"
            return None  # another request had its id
        assert not prefill.outcome, "pages of a request that has ended"
        assert prefill.key == (chunk.transfer, chunk.prompt_digest), "another transfer than before"
        return None if prefill.stopped else prefill

    def _take_pages(self, prefill: Prefill, chunk: Chunk | Computed) -> None:
        pages, *others = chunk.groups
        assert prefill.prompt_tokens in (0, chunk.prompt_tokens), "another length than before"
        prefill.prompt_tokens = chunk.prompt_tokens
        assert chunk.end_token <= chunk.prompt_tokens, "more than the prompt"
        known_end = max(prefill.pages, default=pages.first_page - 1) + 1
        assert pages.first_page <= known_end, "a gap between positions"
        for position, page in enumerate(pages.pages, pages.first_page):
            assert prefill.pages.setdefault(position, page) == page, "another page for a known position"
            assert 0 <= page < self._messenger.memory.pool.page_count, "a page that the engine has not"
        reached = max(prefill.pages, default=pages.first_page - 1) + 1
        assert reached * self._messenger.page_tokens >= chunk.end_token, "fewer pages than tokens"
        rules = self._messenger.memory.beside
        assert len(others) == bool(rules.kind), "not the groups of this model"
        for other in others:
            self._take_beside(prefill, pages, other)
        for delivery in prefill.deliveries:
            if delivery.state == "granted" and delivery.grant.fetching.prompt_tokens != prefill.prompt_tokens:
                self._stop_delivery(delivery, "the prompt has another length at the prefiller")

    def _take_beside(self, prefill: Prefill, full: ChunkPages, other: ChunkPages) -> None:
        rules = self._messenger.memory.beside
        needed = rules.needed(prefill.prompt_tokens)
        if rules.kind == WINDOWED:
            assert (other.first_page, len(other.pages)) == (full.first_page, len(full.pages)), "other positions"
        for position, page in enumerate(other.pages, other.first_page):
            if position in needed:
                assert prefill.beside.setdefault(position, page) == page, "another page for a known position"

    def ended(self, command: PrefillEnded) -> None:
        self._ended.add(command.request)
        prefill = self._open.get(command.request)
        if prefill is None:
            self._messenger.report(Released(command.request))
            return
        if prefill.concluded:
            self._release(prefill)
            return
        if prefill.outcome and command.outcome == "finished":
            return
        if command.outcome == "finished":
            assert prefill.stopped or self._is_complete(prefill), "it finished, and has not given all pages"
            prefill.slot = -1 if command.context_slot is None else command.context_slot
            assert prefill.slot >= 0, "a finished prompt without metadata"
        prefill.outcome, prefill.ended_at = prefill.outcome or command.outcome, self._network.now
        if command.outcome != "finished":
            self._stop(prefill, "the prefiller's engine aborted the request")
        self._settle(prefill)

    def _is_complete(self, prefill: Prefill) -> bool:
        known_end = max([prefill.computed_end, *(end for _step, end in prefill.steps)])
        beside = set(self._messenger.memory.beside.needed(prefill.prompt_tokens))
        return prefill.prompt_tokens > 0 and known_end == prefill.prompt_tokens and beside <= set(prefill.beside)

    def fence(self, request: str) -> bool:
        """Whether no metadata of it is being written, and none will be."""
        prefill = self._open.get(request)
        if prefill is None:
            return True
        self._stop(prefill, "the prefiller's engine has ended the request")
        rows = [write for write in self._network.writes if write.delivery in prefill.deliveries and write.layer < 0]
        if rows and self._messenger.fences_hang:
            return False
        for write in rows:
            self._network._land(write)
        return True

    # ---- from decoders

    def on_grant(self, grant: Grant) -> None:
        grant.received = self._network.now
        for prefill in self._open.values():
            if self._takes(prefill, grant):
                self._attach(prefill, grant)
                return
        unanswered = self._given_up.get(grant.key, set())
        if grant.rank in unanswered:
            unanswered.discard(grant.rank)
            self._answer(grant, "the prefiller's engine aborted the request")
            return
        rivals = [other for other in self.waiting if _may_mean(other.key, grant.key)]
        if any(_engine(other) != _engine(grant) or other.rank == grant.rank for other in rivals):
            self._answer(grant, "it is granted already")
            return
        self._dismissed.pop(grant.key, None)
        self.waiting.append(grant)

    def _takes(self, prefill: Prefill, grant: Grant) -> bool:
        if prefill.stopped or prefill.concluded or not _may_mean(prefill.key, grant.key):
            return False
        return prefill.decoder in ("", _engine(grant)) and grant.rank not in prefill.answered

    def _attach(self, prefill: Prefill, grant: Grant) -> None:
        from sglang_loop.messenger import Delivery

        prefill.decoder = _engine(grant)
        prefill.needing = prefill.needing or self._needing(grant.session)
        prefill.answered.add(grant.rank)
        delivery = Delivery(prefill, grant, self._messenger)
        prefill.deliveries.append(delivery)
        fetch = grant.fetching
        if prefill.prompt_tokens and prefill.prompt_tokens != fetch.prompt_tokens:
            self._stop_delivery(delivery, "the prompt has another length at the prefiller")
        elif not prefill.outcome:
            self._messenger.report(Granted(prefill.request, fetch.prompt_tokens, fetch.first_token))

    def _needing(self, session: Session) -> set[int]:
        from sglang_loop.messenger import heads_of

        size = session.decoder.tp_size
        return {rank for rank in range(size) if set(heads_of(rank, size)) & set(self._messenger.heads)}

    def on_decline(self, session: Session, key: Key) -> None:
        rank = session.decoder.tp_rank
        for prefill in self._open.values():
            fits = _may_mean(prefill.key, key) and prefill.decoder in ("", session.decoder.name)
            if fits and rank not in prefill.answered and not prefill.stopped:
                prefill.decoder, prefill.needing = session.decoder.name, prefill.needing or self._needing(session)
                prefill.answered.add(rank)
                if not prefill.awaits_grants and not prefill.deliveries:
                    self._stop(prefill, "its decoder does not fetch it")
                self._settle(prefill)
                return
        self._dismiss(session, key)

    def _dismiss(self, session: Session, key: Key) -> None:
        ranks = self._dismissed.get(key, (set(), set(), 0.0))[0] | {session.decoder.tp_rank}
        self._dismissed[key] = (ranks, self._needing(session), self._network.now + self._network.limits.grant_wait)

    def on_cancel(self, grant: Grant) -> None:
        if grant in self.waiting:
            self.waiting.remove(grant)
            self._dismiss(grant.session, grant.key)
            self._answer(grant, "cancelled")
            return
        for prefill in list(self._open.values()):
            for delivery in prefill.deliveries:
                if delivery.grant is grant and delivery.state == "granted":
                    self._stop_delivery(delivery, "its decoder gave it up")

    def on_session_end(self, session: Session) -> None:
        for grant in [grant for grant in self.waiting if grant.session is session]:
            self.waiting.remove(grant)
            self._dismiss(session, grant.key)
        for prefill in list(self._open.values()):
            for delivery in prefill.deliveries:
                all_posted = ROW in delivery.posted
                if delivery.grant.session is session and delivery.state == "granted" and not all_posted:
                    self._stop_delivery(delivery, "the session with its decoder ended")

    def close_admission(self, grant: Grant) -> None:
        """Its decoder has made sure that nothing of it lands any more."""
        for prefill in list(self._open.values()):
            for delivery in prefill.deliveries:
                if delivery.grant is grant:
                    delivery.admitted = False

    # ---- writes

    def on_written(self, delivery: Delivery) -> None:
        self._settle_delivery(delivery)

    def on_write_failed(self, delivery: Delivery) -> None:
        if delivery.state == "granted":
            delivery.state, delivery.sentence = "stopped", "a write failed"
        self._settle_delivery(delivery)

    def tick(self) -> bool:
        self._note_steps()
        moved = False
        for prefill in list(self._open.values()):
            for delivery in prefill.deliveries:
                moved |= self._post(prefill, delivery)
            waited = self._network.now - prefill.ended_at
            if prefill.outcome and prefill.awaits_grants and waited >= self._network.limits.grant_wait:
                prefill.stopped = "no grant came"
                self._settle(prefill)
        return moved | self._expire()

    def _note_steps(self) -> None:
        for step in list(self._steps):
            if step.end is not None and self._reached(step.end):
                step.over = True
                self._steps.remove(step)
        for prefill in self._open.values():
            for step, end in list(prefill.steps):
                if step.over:
                    prefill.computed_end = max(prefill.computed_end, end)
                    prefill.steps.remove((step, end))

    def _reached(self, count: int) -> bool:
        return ((self._messenger.word.value - count) & MASK) < 1 << 63

    def _is_readable(self, prefill: Prefill, position: int, layer: int) -> bool:
        end = min((position + 1) * self._messenger.page_tokens, prefill.prompt_tokens)
        if prefill.computed_end >= end:
            return True
        return any(
            chunk_end >= end and self._reached((step.start + layer + 1) & MASK) for step, chunk_end in prefill.steps
        )

    def _post(self, prefill: Prefill, delivery: Delivery) -> bool:
        if delivery.state != "granted" or not delivery.admitted or prefill.stopped or not prefill.prompt_tokens:
            return False
        fetch, drawn, moved = delivery.grant.fetching, self._network.drawn, False
        fetch_end = -(-prefill.prompt_tokens // self._messenger.page_tokens)
        known = [(0, at) for at in fetch.pages if at in prefill.pages]
        known += [(1, at) for at in fetch.beside if at in prefill.beside]
        for group, position in known:
            for layer in range(LAYERS):
                place = (group, position, layer)
                if place in delivery.posted or drawn.random() < 0.2:
                    continue
                whole = group == 1 and self._messenger.memory.beside.kind == STATE
                if self._is_readable(prefill, fetch_end - 1 if whole else position, layer):
                    self._write(delivery, *place)
                    moved = True
        all_landed = len(delivery.landed) == (len(fetch.pages) + len(fetch.beside)) * LAYERS
        if all_landed and prefill.outcome == "finished" and ROW not in delivery.posted:
            self._write(delivery, *ROW)
            moved = True
        return moved

    def _write(self, delivery: Delivery, group: int, position: int, layer: int) -> None:
        delivery.posted.add((group, position, layer))
        delivery.in_flight += 1
        self._network.writes.append(Write(delivery, position, layer, group))

    # ---- ends

    def _stop(self, prefill: Prefill, sentence: str) -> None:
        if not prefill.stopped:
            prefill.stopped = sentence
            unanswered = (prefill.needing or {0, 1}) - prefill.answered
            if unanswered and prefill.outcome != "finished":
                self._given_up[prefill.key] = unanswered
        for delivery in prefill.deliveries:
            if delivery.state == "granted":
                self._stop_delivery(delivery, sentence)
        self._settle(prefill)

    def _stop_delivery(self, delivery: Delivery, sentence: str) -> None:
        delivery.state, delivery.sentence = "stopped", sentence
        self._settle_delivery(delivery)

    def _settle_delivery(self, delivery: Delivery) -> None:
        if delivery.state == "stopped" and not delivery.in_flight:
            delivery.state = "answered"
            self._answer(delivery.grant, delivery.sentence)
        self._settle(delivery.prefill)

    def _answer(self, grant: Grant, sentence: str) -> None:
        """``CannotDeliver`` or ``CancelConfirmed``: the same to a decoder's engine."""
        decoder = grant.session.decoder
        self._network.send(grant.session, "d", lambda: decoder.fetches.on_answer(grant.source, sentence))

    def _settle(self, prefill: Prefill) -> None:
        if self._open.get(prefill.request) is not prefill or prefill.awaits_grants or not prefill.is_quiet:
            return
        if prefill.outcome:
            self._release(prefill)
        elif not prefill.concluded and not any(each.state == "sent" for each in prefill.deliveries):
            prefill.concluded = True
            sentences = [each.sentence for each in prefill.deliveries]
            prefill.stopped = prefill.stopped or (sentences or ["its decoder does not fetch it"])[-1]
            self._messenger.report(Stopped(prefill.request, prefill.stopped))

    def _release(self, prefill: Prefill) -> None:
        del self._open[prefill.request]
        self._messenger.report(Released(prefill.request))

    def _expire(self) -> bool:
        limits, now, moved = self._network.limits, self._network.now, False
        for grant in list(self.waiting):
            heard = grant.key in self._heard
            if now - grant.received >= (limits.grant_wait if heard else limits.unheard):
                moved |= self._decline(grant, "no request with this transfer id reached the prefiller")
        moved |= self._end_contradicted()
        return moved | self._decline_contradicting()

    def _decline_contradicting(self) -> bool:
        """The grants of all ranks together, as the messenger does."""
        limits, now = self._network.limits, self._network.now
        pairs = [
            (grant, prefill)
            for grant in self.waiting
            if now - grant.received >= limits.contradiction
            for prefill in self._open.values()
            if self._contradicts(prefill, grant, now)
        ]
        for grant in dict.fromkeys(grant for grant, _ in pairs):
            self._decline(grant, "the two legs name different prompts")
        for _, prefill in pairs:
            prefill.contradicted_at = now
        return bool(pairs)

    def _end_contradicted(self) -> bool:
        limits, now = self._network.limits, self._network.now
        over = [
            each
            for each in self._open.values()
            if each.contradicted_at is not None and each.needing is None and not each.stopped
            if now - each.contradicted_at >= limits.contradiction
        ]
        for each in over:
            self._stop(each, "the two legs name different prompts")
        return bool(over)

    def _contradicts(self, prefill: Prefill, grant: Grant, now: float) -> bool:
        old = now - prefill.begun >= self._network.limits.contradiction and prefill.contradicted_at is None
        return old and prefill.key[0] == grant.key[0] and prefill.needing is None and not prefill.stopped

    def _decline(self, grant: Grant, sentence: str) -> bool:
        self.waiting.remove(grant)
        self._dismiss(grant.session, grant.key)
        self._answer(grant, sentence)
        return True


def _may_mean(one: Key, other: Key) -> bool:
    return one[0] == other[0] and (one[1] == other[1] or not one[1] or not other[1])


def _engine(grant: Grant) -> str:
    return grant.session.decoder.name
