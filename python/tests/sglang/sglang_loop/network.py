"""The clock, the control links between messengers, the writes in flight, and the questions to bootstrap servers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_loop.messenger import Delivery, SimulatedMessenger

Address = tuple[str, int]


@dataclass(frozen=True)
class Limits:
    """Seconds of the stories' own clock."""

    bootstrap: float = 300.0
    fetch: float = 300.0
    unheard: float = 30.0
    grant_wait: float = 30.0
    connect: float = 5.0
    silence: float = 5.0
    contradiction: float = 5.0
    late_event: float = 60.0


@dataclass(eq=False)
class Session:
    """Between a decoder's and a prefiller's messenger; each side learns of its end on its own."""

    decoder: SimulatedMessenger
    address: Address
    prefiller: SimulatedMessenger | None = None
    begun: float = 0.0
    is_ready: bool = False
    over_at_decoder: bool = False
    over_at_prefiller: bool = False
    frames: dict[str, deque[Callable[[], None]]] = field(default_factory=lambda: {"p": deque(), "d": deque()})

    @property
    def over(self) -> bool:
        return self.over_at_decoder or self.over_at_prefiller


@dataclass(eq=False)
class Write:
    """Posted: it reads its source and writes its target at one moment from now on, or never."""

    delivery: Delivery
    position: int
    layer: int
    """-1 = the metadata."""
    group: int = 0
    """1 = of the second pool."""


class Network:
    """What is between the engines of a story."""

    def __init__(self, drawn: random.Random, limits: Limits, report: Callable[[str, str], None]) -> None:
        self.drawn, self.limits, self.report = drawn, limits, report
        self.now = 1000.0
        self.messengers: dict[Address, SimulatedMessenger] = {}
        self.sessions: list[Session] = []
        self.writes: list[Write] = []
        self.engines: dict[str, dict[int, Any]] = {}
        """By the address of their bootstrap server, and by data-parallel rank; only prefillers have one."""
        self.unreachable: set[str] = set()
        """Bootstrap servers that answer no question."""
        self.pages_written = 0
        self.proof_seconds = 0.0
        """How long a prefiller that lives, as one that was stopped does, may still write after its session's end."""
        self._questions: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    # ---- sessions

    def session(self, decoder: SimulatedMessenger, address: Address) -> Session:
        """The session to this address; a new one where there is none."""
        for session in self.sessions:
            if session.decoder is decoder and session.address == address and not session.over_at_decoder:
                return session
        session = Session(decoder, address, begun=self.now)
        self.sessions.append(session)
        return session

    def send(self, session: Session, to: str, frame: Callable[[], None]) -> None:
        """In order, some time later, or never."""
        session.frames[to].append(frame)

    def end(self, session: Session) -> None:
        """The link is lost; both sides see that in any order, as ``tick`` draws it."""
        if not session.over:
            session.over_at_decoder = self.drawn.random() < 0.5
            session.over_at_prefiller = not session.over_at_decoder
            self._notice(session, at_decoder=session.over_at_decoder)

    def _notice(self, session: Session, *, at_decoder: bool) -> None:
        if at_decoder:
            session.over_at_decoder = True
            session.decoder.fetches.on_session_end(session)
        else:
            session.over_at_prefiller = True
            if session.prefiller is not None:
                session.prefiller.prefills.on_session_end(session)

    def kill(self, messenger: SimulatedMessenger) -> None:
        """Its process is gone: of its writes in flight some land, and its peers learn of it later."""
        if self.messengers.get(messenger.address) is messenger:
            del self.messengers[messenger.address]
        for write in [write for write in self.writes if messenger in (write.delivery.source, write.delivery.target)]:
            if write.delivery.source is messenger and write.delivery.target.alive and self.drawn.random() < 0.5:
                self._land(write)
            else:
                self._drop(write)
        messenger.alive = False
        for session in [each for each in self.sessions if messenger in (each.decoder, each.prefiller)]:
            session.over_at_decoder |= session.decoder is messenger
            session.over_at_prefiller |= session.prefiller is messenger

    # ---- progress

    def tick(self, share: float) -> bool:
        """Some of what is under way happens; whether anything did."""
        moved = self._answer(share)
        for session in list(self.sessions):
            moved |= self._tick_session(session, share)
        self.sessions = [
            each
            for each in self.sessions
            if not (each.over_at_decoder and (each.over_at_prefiller or not each.prefiller))
        ]
        for messenger in list(self.messengers.values()):
            moved |= messenger.tick()
        if self.writes:
            self.drawn.shuffle(self.writes)
            rare = share / 3  # metadata takes longest: it leaves last, and all depends on it
            for write in [each for each in self.writes if self.drawn.random() < (share if each.layer >= 0 else rare)]:
                if write in self.writes:  # an earlier one may have ended its session
                    self._land(write)
            moved = True
        return moved

    def _tick_session(self, session: Session, share: float) -> bool:
        if session.over:
            if self.drawn.random() < share:
                if not session.over_at_decoder and session.decoder.alive:
                    self._notice(session, at_decoder=True)
                session.over_at_decoder = True
                if not session.over_at_prefiller and session.prefiller is not None and session.prefiller.alive:
                    self._notice(session, at_decoder=False)
                session.over_at_prefiller = True
            return True
        if not session.is_ready:
            return self._dial(session, share)
        moved = False
        for to in ("p", "d"):
            while session.frames[to] and self.drawn.random() < share and not session.over:
                session.frames[to].popleft()()
                moved = True
            moved |= bool(session.frames[to])
        return moved

    def _dial(self, session: Session, share: float) -> bool:
        prefiller = self.messengers.get(session.address)
        if prefiller is not None and self.drawn.random() < share:
            session.prefiller, session.is_ready = prefiller, True
            session.decoder.fetches.on_ready(session)
        elif prefiller is None and self.now - session.begun >= self.limits.connect:
            self._notice(session, at_decoder=True)
            session.over_at_prefiller = True
        return prefiller is not None

    def _land(self, write: Write) -> None:
        if not write.delivery.target.alive:  # its prefiller has not heard of that yet
            self._drop(write)
            return
        self.writes.remove(write)
        write.delivery.land(write)
        self.pages_written += 1

    def _drop(self, write: Write) -> None:
        self.writes.remove(write)
        write.delivery.drop(write)

    def close_admission(self, delivery: Delivery) -> None:
        """Nothing of this delivery lands any more."""
        for write in [write for write in self.writes if write.delivery is delivery]:
            self._drop(write)
        delivery.admitted = False

    # ---- bootstrap servers

    def submit(self, question: Callable[[], Any], *arguments: Any) -> Future[Any]:
        """As a thread of ``Prefillers`` would: the answer comes later."""
        future: Future[Any] = Future()
        self._questions.append((future, lambda: question(*arguments)))
        return future

    def shutdown(self, **_named: Any) -> None:
        """No thread is left."""

    def _answer(self, share: float) -> bool:
        asked = bool(self._questions)
        while self._questions and self.drawn.random() < share:
            future, question = self._questions.popleft()
            try:
                future.set_result(question())
            except Exception as fault:
                future.set_exception(fault)
        return asked

    def route(self, url: str, query: Mapping[str, int]) -> Mapping[str, Any]:
        """What a prefiller's bootstrap server says of one of its ranks."""
        engine = self._server(url)[query["prefill_dp_rank"]]
        opened = engine.ranks[query["target_tp_rank"]].endpoint.exchange._messenger.opened
        return {"rank_ip": opened.control_host, "rank_port": opened.control_port}

    def get(self, url: str, timeout: float) -> Any:
        """What it says of the prefiller as a whole, to SGLang's own question."""
        assert timeout > 0
        engine = next(iter(self._server(url).values()))
        facts = {"attn_tp_size": len(engine.ranks), "attn_cp_size": 1, "dp_size": engine.plan.dp_size, "pp_size": 1}
        facts |= {"page_size": engine.page_tokens, "kv_cache_dtype": "bfloat16", "follow_bootstrap_room": True}
        return SimpleNamespace(status_code=200, json=lambda: facts)

    def _server(self, url: str) -> Mapping[int, Any]:
        address = url.split("//")[1].split("/")[0]
        if address in self.unreachable or not self.engines.get(address):
            raise OSError(f"{address} does not answer")
        return self.engines[address]
