"""What a decoder's messenger does with its engine's fetches: docs/protocol.md in short."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kv_connector import Arrived, Failed, Quarantined
from kv_connector.runtime.commands import Decline, Fetch
from kv_connector.runtime.facade import Connected

if TYPE_CHECKING:
    from sglang_loop.messenger import Grant, Key, SimulatedMessenger
    from sglang_loop.network import Session


@dataclass(eq=False)
class Source:
    """One of a fetch's prefillers."""

    session: Session
    state: str = "waiting"
    """Then granted, cancelling or awaiting proof; over = filled or drained."""
    grant: Grant | None = None
    filled: bool = False
    lost_at: float = 0.0


@dataclass(eq=False)
class Fetching:
    """A fetch of the engine, until its end."""

    request: str
    key: Key
    begun: float
    prompt_tokens: int
    first_token: int
    pages: dict[int, int]
    slot: int
    leases: dict[int, Any]
    """Which request had each page when the fetch began."""
    row_lease: Any
    limit: float
    beside: dict[int, int]
    """In the second pool."""
    beside_leases: dict[int, Any]
    sources: list[Source] = field(default_factory=list)
    failing: str = ""
    quarantined: bool = False
    quarantined_at: float = 0.0


class Fetches:
    """The decoding half of one messenger."""

    def __init__(self, messenger: SimulatedMessenger) -> None:
        self._messenger = messenger
        self._network = messenger.network
        self._named: set[str] = set()
        self.open: dict[str, Fetching] = {}
        self._declines: list[tuple[Session, Key]] = []

    # ---- from the engine

    def fetch(self, command: Fetch) -> None:
        assert command.request not in self._named, "a name is given twice"
        self._named.add(command.request)
        page_tokens, (group, *others) = self._messenger.page_tokens, command.groups
        assert command.first_token % page_tokens == 0, "a beginning inside a page"
        assert command.first_token < command.prompt_tokens, "a fetch of nothing"
        first = command.first_token // page_tokens
        assert len(group.pages) == -(-command.prompt_tokens // page_tokens) - first, "not the pages of these tokens"
        assert len(set(group.pages)) == len(group.pages), "a page twice"
        memory, slot = self._messenger.memory, -1 if command.context_slot is None else command.context_slot
        pages = dict(enumerate(group.pages, first))
        owners = {position: memory.pool.owners[page] for position, page in pages.items()}
        assert all(owner is not None for owner in owners.values()), "a page that no request has"
        assert slot in memory.row_owners, "a metadata slot that no request has"
        assert len(others) == bool(memory.beside.kind), "not the groups of this model"
        needed = memory.beside.needed(command.prompt_tokens)
        beside = {at: page for other in others for at, page in zip(needed, other.pages, strict=True)}
        beside_owners = {at: memory.beside.pool.owners[page] for at, page in beside.items()}
        assert all(owner is not None for owner in beside_owners.values()), "a page of the second pool that is free"
        fetching = Fetching(
            request=command.request,
            key=(command.transfer, command.prompt_digest),
            begun=self._network.now,
            prompt_tokens=command.prompt_tokens,
            first_token=command.first_token,
            pages=pages,
            slot=slot,
            leases=owners,
            row_lease=memory.row_owners[slot],
            limit=command.limit_millis / 1000,
            beside=beside,
            beside_leases=beside_owners,
        )
        fetching.sources = [
            Source(self._network.session(self._messenger, (each.host, each.port))) for each in command.prefillers
        ]
        self.open[command.request] = fetching
        self._advance(fetching)

    def abandon(self, request: str) -> None:
        assert request in self._named, "an unknown request is abandoned"
        if (fetching := self.open.get(request)) is not None:
            self._fail(fetching, "the engine gave the request up")

    def report_end(self, request: str) -> None:
        assert request in self._named, "an unknown request is asked for"
        if request not in self.open:
            self._messenger.report(Failed(request, "it is not under way any more"))

    def decline(self, command: Decline) -> None:
        for each in command.prefillers:
            session = self._network.session(self._messenger, (each.host, each.port))
            self._decline(session, (command.transfer, command.prompt_digest))

    def _decline(self, session: Session, key: Key) -> None:
        """At once, or when the session is ready."""
        if session.is_ready:
            self._send_decline(session, key)
        elif not session.over_at_decoder:
            self._declines.append((session, key))

    def _send_decline(self, session: Session, key: Key) -> None:
        prefiller = session.prefiller
        assert prefiller is not None
        self._network.send(session, "p", lambda: prefiller.prefills.on_decline(session, key))

    # ---- from sessions

    def on_ready(self, session: Session) -> None:
        assert session.prefiller is not None
        self._messenger.report(Connected(*session.address, session.prefiller.opened.incarnation))
        for declined in [each for each in self._declines if each[0] is session]:
            self._declines.remove(declined)
            self._send_decline(*declined)
        for fetching in list(self.open.values()):
            self._advance(fetching)

    def _advance(self, fetching: Fetching) -> None:
        """Grants once all sessions are ready."""
        from sglang_loop.messenger import Grant

        if fetching.failing or not all(
            each.session.is_ready and not each.session.over_at_decoder for each in fetching.sources
        ):
            return
        for source in fetching.sources:
            if source.state == "waiting":
                session, prefiller = source.session, source.session.prefiller
                assert prefiller is not None
                source.grant, source.state = Grant(session, source, fetching, fetching.key), "granted"
                self._network.send(session, "p", lambda grant=source.grant, to=prefiller: to.prefills.on_grant(grant))

    def on_answer(self, source: Source, sentence: str) -> None:
        """It will not be sent (any further), and nothing of it is under way."""
        for fetching in list(self.open.values()):
            if source in fetching.sources and source.state != "over":
                source.state = "over"
                self._fail(fetching, sentence)

    def on_session_end(self, session: Session) -> None:
        self._declines = [each for each in self._declines if each[0] is not session]
        for fetching in list(self.open.values()):
            for source in fetching.sources:
                if source.session is not session or source.state == "over":
                    continue
                if source.state == "waiting":
                    source.state = "over"
                    self._fail(fetching, "its prefiller cannot be reached")
                else:
                    source.state, source.lost_at = "awaiting", self._network.now

    # ---- progress

    def tick(self) -> bool:
        moved = False
        for fetching in list(self.open.values()):
            if self._network.now - fetching.begun >= fetching.limit and not fetching.failing:
                self._fail(fetching, "it has not arrived within fetch_limit_seconds")
                moved = True
            for source in fetching.sources:
                moved |= self._tick_source(fetching, source)
            self._end(fetching)
        return moved

    def _tick_source(self, fetching: Fetching, source: Source) -> bool:
        if source.state == "over":
            return False
        if source.filled and not (source.grant and self._deliveries_in_flight(source.grant)):
            source.state = "over"
            return True
        if source.state != "awaiting":
            return False
        if fetching.failing and not fetching.quarantined:
            fetching.quarantined, fetching.quarantined_at = True, self._network.now
            self._messenger.report(Quarantined(fetching.request, "its prefiller is lost"))
        waited = self._network.now - source.lost_at
        if waited < self._network.limits.silence and self._network.drawn.random() > 0.02:
            return False
        prefiller = source.session.prefiller
        if waited < self._network.proof_seconds and prefiller is not None and prefiller.alive:
            undecided = not fetching.failing  # it fails now, and only its pages wait
            if undecided:
                self._fail(fetching, "the session with its prefiller ended")
            return undecided
        self._close(source)
        source.state = "over"
        if not source.filled:
            self._fail(fetching, "the session with its prefiller ended")
        return True

    def _deliveries_in_flight(self, grant: Grant) -> bool:
        return any(write.delivery.grant is grant for write in self._network.writes)

    def _close(self, source: Source) -> None:
        """The admission is closed: what has not landed by now never does."""
        for write in list(self._network.writes):
            if write.delivery.grant is source.grant:
                self._network.close_admission(write.delivery)
        prefiller = source.session.prefiller
        if prefiller is not None and source.grant is not None:
            prefiller.prefills.close_admission(source.grant)

    def _fail(self, fetching: Fetching, sentence: str) -> None:
        if not fetching.failing:
            fetching.failing = sentence
            for source in fetching.sources:
                self._give_up(source, fetching.key)
        self._end(fetching)

    def _give_up(self, source: Source, key: Key) -> None:
        if source.state == "waiting":
            source.state = "over"
            self._decline(source.session, key)
        elif source.state == "granted":
            source.state = "cancelling"
            grant, prefiller = source.grant, source.session.prefiller
            assert grant is not None
            assert prefiller is not None
            self._network.send(source.session, "p", lambda: prefiller.prefills.on_cancel(grant))

    def _end(self, fetching: Fetching) -> None:
        if fetching.request not in self.open or any(each.state != "over" for each in fetching.sources):
            return
        del self.open[fetching.request]
        if all(each.filled for each in fetching.sources):
            self._messenger.report(Arrived(fetching.request, len(fetching.pages)))
        else:
            self._messenger.report(Failed(fetching.request, fetching.failing or "it failed"))
