"""One rank's messenger, as its halves see it: it checks what it is given against docs/boundary.md."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kv_connector import Event, LeakCheck, MessengerError, Opened, Stats
from kv_connector.runtime.commands import (
    Abandon,
    Announce,
    Command,
    Compared,
    Computed,
    Decline,
    Fetch,
    PrefillEnded,
    Refuted,
    ReportEnd,
    Step,
    StepEnded,
    StepFailed,
)
from sglang_loop.beside_pool import BesidePool
from sglang_loop.decoder_side import Fetches
from sglang_loop.pools import HEADS, Pool
from sglang_loop.prefiller_side import Prefills

if TYPE_CHECKING:
    from sglang_loop.decoder_side import Fetching, Source
    from sglang_loop.network import Address, Network, Session, Write
    from sglang_loop.prefiller_side import Prefill

Key = tuple[str, str]
"""A transfer's id and its prompt's digest."""


def heads_of(tp_rank: int, tp_size: int) -> range:
    return range(tp_rank * HEADS // tp_size, (tp_rank + 1) * HEADS // tp_size)


@dataclass(eq=False)
class Memory:
    """What a messenger reads and writes of its engine; the pool is the engine's, the rest the rank's."""

    pool: Pool
    beside: BesidePool
    rows: dict[int, Any] = field(default_factory=dict)
    """The metadata by slot."""
    row_owners: dict[int, Any] = field(default_factory=dict)

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """By group."""
        return self.pool, self.beside.pool


@dataclass(eq=False)
class Grant:
    """A decoder's rank waits for a prompt in these pages."""

    session: Session
    source: Source
    fetching: Fetching
    key: Key
    received: float = 0.0

    @property
    def rank(self) -> int:
        return self.session.decoder.tp_rank


@dataclass(eq=False)
class Delivery:
    """What one prefill sends for one grant."""

    prefill: Prefill
    grant: Grant
    source: SimulatedMessenger
    posted: set[tuple[int, int, int]] = field(default_factory=set)
    """By group, position and layer."""
    landed: set[tuple[int, int, int]] = field(default_factory=set)
    in_flight: int = 0
    state: str = "granted"
    """Then sent; or stopped, and answered."""
    sentence: str = ""
    admitted: bool = True
    """Whether its writes may still land."""

    @property
    def target(self) -> SimulatedMessenger:
        return self.grant.session.decoder

    def land(self, write: Write) -> None:
        self.in_flight -= 1
        self.landed.add((write.group, write.position, write.layer))
        if write.layer < 0:
            self._land_row()
        else:
            self._land_page(write)
        self.source.prefills.on_written(self)

    def _land_page(self, write: Write) -> None:
        prefill, fetch = self.prefill, self.grant.fetching
        pages, targets, leases = (
            (prefill.pages, fetch.pages, fetch.leases),
            (prefill.beside, fetch.beside, fetch.beside_leases),
        )[write.group]
        source, destination = self.source.memory.pools[write.group], self.target.memory.pools[write.group]
        page, target = pages[write.position], targets[write.position]
        if destination.owners[target] is not leases[write.position]:
            self.source.network.report(
                "wrote a page of another request",
                f"page {target} of {fetch.request}, given away before its end",
            )
        for head in self.source.heads:
            if head in self.target.heads:
                destination.kv[target, write.layer, head] = source.kv.get((page, write.layer, head))

    def _land_row(self) -> None:
        fetch, memory = self.grant.fetching, self.target.memory
        if memory.row_owners.get(fetch.slot) is not fetch.row_lease:
            self.source.network.report("wrote metadata of another request", f"slot {fetch.slot} of {fetch.request}")
        memory.rows[fetch.slot] = self.source.memory.rows.get(self.prefill.slot)
        self.state = "sent" if self.state == "granted" else self.state
        self.grant.source.filled = True

    def drop(self, _write: Write) -> None:
        """It failed: the bytes are lost, or land where nothing of this transfer is used."""
        self.in_flight -= 1
        self.source.prefills.on_write_failed(self)


class SimulatedMessenger:
    """A messenger of either role, at an address of its own."""

    def __init__(
        self,
        network: Network,
        name: str,
        address: Address,
        place: tuple[int, int],
        memory: Memory,
        page_tokens: int,
    ) -> None:
        """``name``: of this start of its engine; ``place``: the rank, and of how many."""
        self.network, self.name, self.address = network, name, address
        self.tp_rank, self.tp_size = place
        self.heads = heads_of(*place)
        self.memory, self.page_tokens = memory, page_tokens
        self.word = ctypes.c_uint64(network.drawn.choice([8, (1 << 64) - 5]))
        self.opened = Opened(1, name, name, *address, address[0], 0, ctypes.addressof(self.word))
        self.alive = True
        self.events: list[Event] = []
        self.refuses: list[type[Command]] = []
        """Kinds of commands of which the next one is not taken."""
        self.refused: list[Command] = []
        self.drops: list[type] = []
        """Kinds of events of which the next one is lost."""
        self.dropped: list[Event] = []
        self.polls_fail = False
        self.fences_hang = False
        self.prefills = Prefills(self)
        self.fetches = Fetches(self)
        network.messengers[self.address] = self

    # ---- the port

    def submit(self, commands: Sequence[Command]) -> None:
        if not self.alive:
            raise MessengerError("this messenger is closed")
        for command in commands:
            if type(command) in self.refuses:
                self.refuses.remove(type(command))
                self.refused.append(command)
                raise MessengerError("simulated: no such command now")
            try:
                self._take(command)
            except AssertionError as broken:
                self.network.report("boundary broken", f"{broken}: {command}"[:400])
                raise

    def _take(self, command: Command) -> None:
        match command:
            case Announce():
                self.prefills.announce(command)
            case Computed():
                self.prefills.computed(command)
            case Step():
                self.prefills.step(command)
            case StepEnded():
                self.prefills.step_ended(command)
            case StepFailed():
                self.prefills.step_failed(command)
            case PrefillEnded():
                self.prefills.ended(command)
            case Fetch():
                self.fetches.fetch(command)
            case Abandon():
                self.fetches.abandon(command.request)
            case ReportEnd():
                self.fetches.report_end(command.request)
            case Decline():
                self.fetches.decline(command)
            case Refuted() | Compared():
                pass
            case _:
                raise AssertionError("an unexpected command")

    def poll(self) -> list[Event]:
        if self.polls_fail or not self.alive:
            raise MessengerError("simulated: this messenger is dead")
        count = (
            len(self.events) if self.network.drawn.random() < 0.8 else self.network.drawn.randint(0, len(self.events))
        )
        events, self.events = self.events[:count], self.events[count:]
        kept = []
        for event in events:
            if type(event) in self.drops:
                self.drops.remove(type(event))
                self.dropped.append(event)
            else:
                kept.append(event)
        return kept

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        assert limit_seconds > 0
        if not self.alive:
            raise MessengerError("this messenger is closed")
        return [request for request in requests if self.prefills.fence(request)]

    def leak_check(self) -> LeakCheck:
        held = {
            "prefills": self.prefills.count(),
            "grants": len(self.prefills.waiting),
            "fetches": len(self.fetches.open),
            "quarantinedPages": sum(len(each.pages) for each in self.fetches.open.values() if each.quarantined),
        }
        return LeakCheck(clean=not any(held.values()), held=held)

    def stats(self) -> Stats:
        return Stats({}, {})

    def wait(self, limit_seconds: float) -> None:
        raise AssertionError(f"SGLang's loop polls, and does not wait {limit_seconds} s")

    def close(self, why: str = "") -> None:  # noqa: ARG002
        if self.alive:
            self.network.kill(self)

    # ---- for both sides

    def report(self, event: Event) -> None:
        self.events.append(event)

    @property
    def has_lost(self) -> bool:
        """Whether a command was not taken, or an event was lost."""
        return bool(self.refused or self.dropped)

    def tick(self) -> bool:
        if self.prefills.is_idle and not self.fetches.open:
            return False
        return self.prefills.tick() | self.fetches.tick()
