"""What becomes of SGLang's transfers when the messenger says this or that; no SGLang and no JVM."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kv_connector import (
    Arrived,
    Connected,
    Event,
    Failed,
    Granted,
    LeakCheck,
    MessengerError,
    Opened,
    Quarantined,
    Released,
    Stats,
    Stopped,
    Timeline,
)
from kv_connector.runtime.commands import ChunkPages, Command, Compared, PrefillerAddress, Refuted, ReportEnd, name_of
from kv_connector.sglang.exchange import (
    DRAIN_INTERVAL_SECONDS,
    PROOF_SECONDS,
    Exchange,
    MessengerLostError,
)

THERE = PrefillerAddress("there", 7)
LIMIT_SECONDS = 20 * DRAIN_INTERVAL_SECONDS
"""By the test's own clock."""


class ScriptedMessenger:
    """Keeps what it is told, and says what the test wants."""

    opened = Opened(1, "e", "7", "h", 1, "h", 2, 4096)

    def __init__(self) -> None:
        self.submitted: list[Any] = []
        self.events: list[Event] = []
        self.fenced: list[str] = []
        self.broken = False
        self.unclosable = False
        self.closed = 0
        self.leaks: list[dict[str, int]] = []
        """What its leak checks find, one after the other; afterwards nothing."""

    def submit(self, commands: Sequence[Command]) -> None:
        self._check()
        self.submitted.extend(commands)

    def poll(self) -> list[Event]:
        self._check()
        events, self.events = self.events, []
        return events

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        assert limit_seconds > 0
        self._check()
        return [request for request in requests if request in self.fenced]

    def stats(self) -> Stats:
        return Stats({}, {})

    def wait(self, limit_seconds: float) -> None:
        raise AssertionError(f"SGLang's loop asks all the time, and waits for {limit_seconds} s")

    def leak_check(self) -> LeakCheck:
        held = self.leaks.pop(0) if self.leaks else {}
        return LeakCheck(clean=not any(held.values()), held=held)

    def close(self, why: str = "") -> None:  # noqa: ARG002
        self.closed += 1
        if self.unclosable:
            raise MessengerError("it does not close")

    def _check(self) -> None:
        if self.broken:
            raise MessengerError("it is broken")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += DRAIN_INTERVAL_SECONDS
        return self.now


@pytest.fixture
def messenger() -> ScriptedMessenger:
    return ScriptedMessenger()


@pytest.fixture
def exchange(messenger: ScriptedMessenger) -> Exchange:
    return Exchange(messenger, logging.getLogger("exchange"), Clock(), exit_when_lost=False)


def test_an_arrival_knows_how_many_sessions_were_opened_before_it(
    messenger: ScriptedMessenger, exchange: Exchange
) -> None:
    """Both orders in one poll: what arrives before a prefiller is another process did not come from that one."""
    heard: list[tuple[PrefillerAddress, str, int]] = []
    exchange.on_connected = lambda *connected: heard.append(connected)
    before, after = fetch(exchange, 5), fetch(exchange, 6)
    messenger.events = [
        Connected("there", 7, "a"),
        Arrived(before.request, 2),
        Connected("there", 7, "b"),
        Arrived(after.request, 2),
    ]
    exchange.drain()
    assert (before.sessions, after.sessions) == (1, 2)
    assert heard == [(THERE, "a", 1), (THERE, "b", 2)]


def test_comparisons_are_counted_by_the_messenger(messenger: ScriptedMessenger, exchange: Exchange) -> None:
    exchange.count_compared("different", 1.5, [THERE, PrefillerAddress("there", 8)])
    exchange.count_refuted()
    assert messenger.submitted == [
        Compared("different", 1_500_000, [THERE]),
        Refuted(1),
    ]


def fetch(exchange: Exchange, room: int = 5) -> Any:
    return exchange.fetch(
        room, [THERE], prompt_tokens=32, first_token=0, pages=[[3, 4]], context_slot=2, limit_seconds=1.5
    )


def test_should_end_a_prefill_once_and_wait_for_its_release(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    out = exchange.announce(5)
    messenger.events = [Granted(out.request, 32, 16)]
    exchange.drain()
    assert out.granted == Granted(out.request, 32, 16)
    exchange.computed(out, 32, 32, [ChunkPages(0, [7])])
    exchange.finish(out, 3)
    exchange.finish(out, 3)
    exchange.computed(out, 32, 32, [ChunkPages(1, [8])])
    assert [name_of(command) for command in messenger.submitted] == ["announce", "computed", "prefillEnded"]
    assert messenger.submitted[-1].context_slot == 3
    assert exchange.held() == {"outgoing": 1}
    messenger.events = [Released(out.request)]
    exchange.drain()
    assert out.released
    assert exchange.held() == {}


def test_should_keep_the_first_reason_of_a_prefill_that_stopped(
    exchange: Exchange, messenger: ScriptedMessenger
) -> None:
    out = exchange.announce(5)
    messenger.events = [Stopped(out.request, "the decoder is gone")]
    exchange.drain()
    exchange.abort(out, "Aborted")
    assert out.failure == "the decoder is gone"
    assert not out.released
    assert messenger.submitted[-1].outcome == "aborted"


def test_should_distinguish_two_requests_of_one_room(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    first, second = fetch(exchange), fetch(exchange)
    exchange.abandon(first)
    messenger.events = [Arrived(second.request, 2)]
    exchange.drain()
    assert second.arrived
    assert not exchange.is_quiet(5)
    messenger.events = [Failed(first.request, "cancelled")]
    assert exchange.is_quiet(5)
    assert first.failure == "cancelled"


def test_should_poll_once_for_all_requests_of_a_round(messenger: ScriptedMessenger) -> None:
    now = [0.0]
    exchange = Exchange(messenger, logging.getLogger("exchange"), lambda: now[0])
    out = exchange.announce(5)
    exchange.drain()
    messenger.events = [Released(out.request)]
    exchange.drain()
    assert not out.released
    now[0] += 2 * DRAIN_INTERVAL_SECONDS
    exchange.drain()
    assert out.released


def test_should_say_when_a_fetch_is_given_up(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    fetch(exchange)
    assert messenger.submitted[-1].limit_millis == 1500


def test_should_add_up_what_left_to_the_ranks_of_a_decoder(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    out = exchange.announce(5)
    head = {"request": out.request, "side": "prefiller", "forwardEndNs": 3_000_000_000}
    messenger.events = [
        Timeline("5", head | {"bytes": 100, "lastLeftNs": 3_500_000_000}),
        Timeline("5", head | {"bytes": 20, "lastLeftNs": 2_900_000_000}),
    ]
    exchange.drain()
    assert out.bytes_sent == 120
    assert out.tail_seconds == 0.5


def test_should_end_the_engine_when_the_messenger_breaks(messenger: ScriptedMessenger) -> None:
    exchange = Exchange(messenger, logging.getLogger("exchange"), Clock())
    out = exchange.announce(5)
    exchange.drain()
    messenger.broken = True
    for _ in range(2):
        with pytest.raises(MessengerLostError, match=r"could not be polled: it is broken"):
            exchange.drain()
    assert messenger.closed == 1
    assert out.released


def test_should_go_on_when_a_fence_is_not_reached(
    exchange: Exchange, messenger: ScriptedMessenger, caplog: pytest.LogCaptureFixture
) -> None:
    fenced, read, other = exchange.announce(5), exchange.announce(6), exchange.announce(7)
    messenger.fenced = [fenced.request]
    exchange.fence(fenced)
    assert fenced.released
    assert not caplog.messages
    exchange.fence(read)
    assert read.released
    assert "metadata of room 6" in caplog.text
    assert messenger.closed == 0
    messenger.events = [Granted(other.request, 32, 16)]
    exchange.drain()
    assert other.granted is not None


def test_should_end_all_transfers_when_the_messenger_breaks(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    out, incoming = exchange.announce(5), fetch(exchange, 6)
    messenger.broken = True
    exchange.drain()
    assert messenger.closed == 1
    assert out.released
    assert "given up" in out.failure
    assert "given up" in incoming.failure
    assert "given up" in fetch(exchange, 7).failure
    assert "given up" in exchange.announce(8).failure


def test_should_hold_pages_of_a_messenger_that_does_not_close(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    out, incoming = exchange.announce(5), fetch(exchange, 6)
    messenger.broken = messenger.unclosable = True
    exchange.drain()
    assert not out.released
    assert not incoming.ended
    assert not exchange.is_quiet(6)


def test_should_settle_once_nothing_is_held_any_more(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    out = exchange.announce(5)
    exchange.finish(out, 3)
    messenger.leaks = [{"prefills": 1, "grants": 0}, {"windows": 1}]
    messenger.events = [Released(out.request)]
    assert exchange.settle(LIMIT_SECONDS) is None
    assert not messenger.leaks


def test_should_say_what_it_waited_for_in_vain(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    fetch(exchange)
    messenger.leaks = [{"fetches": 1, "grants": 0}] * 1000
    unsettled = exchange.settle(LIMIT_SECONDS)
    assert unsettled is not None
    assert (unsettled.of_requests, unsettled.of_messenger) == ({"incoming": 1}, {"fetches": 1})
    assert str(unsettled) == "1 fetches, 1 incoming"


def test_should_have_a_reason_for_each_failure(exchange: Exchange, messenger: ScriptedMessenger) -> None:
    """SGLang takes a failure without a reason for one of another rank, and logs nothing."""
    incoming = fetch(exchange)
    messenger.events = [Failed(incoming.request, "")]
    exchange.drain()
    assert incoming.failure
    out = exchange.announce(6)
    exchange.abort(out, "its client has gone")
    assert out.failure == "its client has gone"
    messenger.broken = True
    assert exchange.announce(7).failure
    assert fetch(exchange, 8).failure


UNHEARD_SECONDS = 60.0


def after(clock: Clock, seconds: float, exchange: Exchange) -> None:
    clock.now += seconds
    exchange.drain()


@pytest.mark.parametrize("lost", [Released, Granted, Stopped, Timeline])
def test_should_end_a_prefill_although_an_event_is_lost(messenger: ScriptedMessenger, lost: type) -> None:
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock)
    out = exchange.announce(5)
    exchange.computed(out, 32, 32, [ChunkPages(0, [7])])
    exchange.finish(out, 3)
    events: list[Event] = [
        Granted(out.request, 32, 0),
        Stopped(out.request, "r"),
        Timeline("5", {}),
        Released(out.request),
    ]
    messenger.events = [event for event in events if type(event) is not lost]
    after(clock, 1, exchange)
    assert out.released == (lost is not Released)
    after(clock, 1.3 * UNHEARD_SECONDS, exchange)
    submitted_again = [command for command in messenger.submitted if name_of(command) == "prefillEnded"][1:]
    assert submitted_again == ([] if out.released else [messenger.submitted[2]])
    messenger.events = [Released(command.request) for command in submitted_again]
    after(clock, 1, exchange)
    assert out.released
    assert not exchange.held()


def with_answers(messenger: ScriptedMessenger, lost: int = 0) -> None:
    """The messenger has no fetch any more, and reports so when it is asked; the first answers are lost."""
    submit, answers = messenger.submit, itertools.count()

    def and_answer(commands: Sequence[Command]) -> None:
        submit(commands)
        asked = [command.request for command in commands if isinstance(command, ReportEnd)]
        messenger.events += [Failed(request, "it is over") for request in asked if next(answers) >= lost]

    messenger.submit = and_answer  # type: ignore[method-assign]


def of_kind(messenger: ScriptedMessenger, name: str) -> list[Any]:
    return [command for command in messenger.submitted if name_of(command) == name]


@pytest.mark.parametrize("answers_lost", [0, 1, 3])
@pytest.mark.parametrize("is_quarantined", [False, True])
def test_should_ask_for_the_end_of_a_fetch_that_was_lost(
    messenger: ScriptedMessenger, is_quarantined: bool, answers_lost: int
) -> None:
    """Arrived or Failed is lost: the fetch ends with the messenger's answer, and no other one is harmed."""
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock)
    incoming = fetch(exchange)
    if is_quarantined:
        messenger.events = [Quarantined(incoming.request, "its prefiller is silent")]
    after(clock, 1, exchange)
    with_answers(messenger, answers_lost)
    other = fetch(exchange, 6)
    messenger.events = [Arrived(other.request, 2)]
    after(clock, UNHEARD_SECONDS - 1, exchange)
    assert other.arrived
    assert not of_kind(messenger, "reportEnd")
    for _ in range(answers_lost + 1):
        assert not incoming.ended
        assert not exchange.is_quiet(5)
        after(clock, 1.3 * UNHEARD_SECONDS, exchange)
        after(clock, 1, exchange)
    assert incoming.failure == "it is over"
    assert exchange.is_quiet(5)
    assert len(of_kind(messenger, "reportEnd")) == 1 + answers_lost
    assert len(of_kind(messenger, "abandon")) == (0 if is_quarantined else 1)
    assert not messenger.closed


def test_should_fail_a_request_whose_fetch_has_no_end_and_keep_its_pages(messenger: ScriptedMessenger) -> None:
    """The messenger has it still: nothing proves that nothing writes to its pages."""
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock)
    incoming = fetch(exchange)
    for _ in range(5):
        after(clock, 1.3 * UNHEARD_SECONDS, exchange)
    assert exchange.why_without_proof(incoming).endswith("within its limit")
    assert not exchange.is_quiet(5)
    assert len(of_kind(messenger, "abandon")) == 1
    assert not messenger.closed


def test_should_keep_quarantined_pages_as_long_as_no_proof_comes(messenger: ScriptedMessenger) -> None:
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock)
    incoming = fetch(exchange, 5)
    messenger.events = [Quarantined(incoming.request, "its prefiller is silent")]
    for asked in range(20):
        after(clock, 1.3 * UNHEARD_SECONDS, exchange)
        assert not incoming.ended
        assert not exchange.is_quiet(5)
        assert len(of_kind(messenger, "reportEnd")) == asked
    messenger.events = [Failed(incoming.request, "its prefiller is silent")]
    after(clock, 1, exchange)
    assert exchange.is_quiet(5)
    assert not messenger.closed


@pytest.mark.parametrize("has_arrived", [False, True])
def test_should_end_a_fetch_once_when_its_end_crosses_the_question(
    messenger: ScriptedMessenger, has_arrived: bool
) -> None:
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock)
    incoming = fetch(exchange)
    after(clock, 1.5 + 1.3 * UNHEARD_SECONDS, exchange)
    assert len(of_kind(messenger, "reportEnd")) == 1
    end = Arrived(incoming.request, 2) if has_arrived else Failed(incoming.request, "its prefiller is silent")
    messenger.events = [end, Failed(incoming.request, "it is over")]
    after(clock, 1, exchange)
    assert (incoming.arrived, incoming.failure) == (has_arrived, "" if has_arrived else "its prefiller is silent")
    assert not exchange.held()


def test_should_fail_a_fetch_whose_proof_is_late_and_not_one_whose_prefiller_may_be_asked_again(
    messenger: ScriptedMessenger,
) -> None:
    clock = Clock()
    exchange = Exchange(messenger, logging.getLogger("exchange"), clock, exit_when_lost=False)
    incoming = fetch(exchange)
    messenger.events = [Quarantined(incoming.request, "its prefiller is silent")]
    after(clock, 1, exchange)
    assert exchange.why_without_proof(incoming) == ""
    after(clock, PROOF_SECONDS, exchange)
    assert exchange.why_without_proof(incoming) == "its prefiller is silent"
    assert not incoming.ended, "its pages are kept"


@pytest.mark.parametrize("broken", range(3))
def test_should_handle_the_events_behind_one_that_cannot_be(
    exchange: Exchange, messenger: ScriptedMessenger, broken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = [fetch(exchange, room) for room in (1, 2, 3)]
    handle = exchange._on

    def fault(event: Any) -> None:
        if event.request == incoming[broken].request:
            raise OSError("a fault of ours")
        handle(event)

    monkeypatch.setattr(exchange, "_on", fault)
    messenger.events = [Arrived(each.request, 1) for each in incoming]
    exchange.drain()
    assert [each.arrived for each in incoming] == [index != broken for index in range(3)]
