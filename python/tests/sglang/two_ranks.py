"""A prefiller's and a decoder's rank with the real halves, and what stands for their messengers and the wire between.

No JVM. The messengers check what they are given against docs/boundary.md, and do what docs/protocol.md says.
"""

from __future__ import annotations

import itertools
import logging
from array import array
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import Any

from kv_connector import Arrived, Event, Failed, Granted, LeakCheck, Opened, Released, Stats, Stopped
from kv_connector.exceptions import KvConnectorError
from kv_connector.runtime.commands import (
    Abandon,
    Announce,
    Command,
    Computed,
    Decline,
    Fetch,
    PrefillEnded,
    PrefillerAddress,
)
from kv_connector.sglang.beside_pages import PromptParts
from kv_connector.sglang.exchange import DRAIN_INTERVAL_SECONDS, Exchange
from kv_connector.sglang.page_numbers import PageNumbers
from kv_connector.sglang.prefillers import Prefillers, RankPlace
from kv_connector.sglang.receiver import Receiver
from kv_connector.sglang.sender import Sender
from kv_connector.sglang.sglang_api import KVPoll, KVTransferError

ROOM, BOOTSTRAP = 1234, "there:8998"
PAGE_TOKENS, PAGES, FIRST_CHUNK_PAGES = 16, 44, 16
THERE = PrefillerAddress("there", 7)
ENDS = (KVPoll.Success, KVPoll.Failed)


class Port:
    """One rank's messenger, as the halves see it."""

    opened = Opened(1, "e", "7", "h", 1, "h", 2, 4096)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.events: list[Event] = []

    def submit(self, commands: Sequence[Command]) -> None:
        for command in commands:
            try:
                self._wire.take(command)
            except AssertionError as broken:  # the halves take it for a messenger that refuses, and go on
                self._wire.broken.append(str(broken))
                raise

    def poll(self) -> list[Event]:
        events, self.events = self.events, []
        return events

    def fence(self, requests: Sequence[str], limit_seconds: float) -> list[str]:
        assert limit_seconds > 0
        return self._wire.fence(requests)

    def stats(self) -> Stats:
        return Stats({}, {})

    def leak_check(self) -> LeakCheck:
        return LeakCheck(clean=True, held={})

    def wait(self, limit_seconds: float) -> None:
        raise AssertionError(f"SGLang's loop polls, and does not wait {limit_seconds} s")

    def close(self, why: str = "") -> None:  # noqa: ARG002
        raise AssertionError("no rank ends here")


class Wire:
    """Both messengers and what is between them, for one room."""

    def __init__(self, *, is_slow: bool) -> None:
        """``is_slow``: what has ended is released later than it can be."""
        self._release_waits = is_slow
        self.source, self.target = Port(self), Port(self)
        self.announced = ""
        """The prefiller's request; "" = not known."""
        self.granted = ""
        """The fetch that it was granted to."""
        self.stopped = False
        self.outcome = ""
        self.released = False
        self.declined = False
        self.fetch: Fetch | None = None
        """In flight: its pages may be written to."""
        self.abandoned = False
        self.arrived = False
        self.pages_reused = False
        """Whether the prefiller's engine has freed the pages although their transfer was not released."""
        self.broken: list[str] = []
        """What the halves did that docs/boundary.md does not allow."""
        self._known_pages = 0

    # ---- commands

    def take(self, command: Command) -> None:
        match command:
            case Announce(request):
                assert not self.announced
                self.announced = request
            case Computed(request, end_token=end_token, groups=groups):
                self._take_computed(request, end_token, len(groups[0].pages), groups[0].first_page)
            case PrefillEnded(request, outcome):
                assert request == self.announced
                assert outcome != "finished" or self._known_pages == PAGES, "it finished and has not given all pages"
                self.outcome = self.outcome or outcome  # it may be reported again, which changes nothing
            case Fetch():
                assert self.fetch is None, "two fetches for one room"
                self.fetch = command
            case Abandon(request):
                self.abandoned = self.abandoned or (self.fetch is not None and self.fetch.request == request)
            case Decline():
                self.declined = True
            case _:
                raise AssertionError(f"unexpected: {command}")

    def _take_computed(self, request: str, end_token: int, page_count: int, first_page: int) -> None:
        assert request == self.announced
        assert self.granted, "a pass began before its grant"
        assert not self.outcome, "chunks of a request that has ended"
        assert first_page == self._known_pages
        self._known_pages += page_count
        assert end_token == self._known_pages * PAGE_TOKENS

    def fence(self, requests: Sequence[str]) -> list[str]:
        """The transfer ends as preempted."""
        assert list(requests) == [self.announced]
        if self.outcome == "finished":
            self.broken.append("a fence blocks the engine for a prompt that only waits for its release")
        if self.is_granted:
            self._end_fetch("its prefill was preempted")
        self.released = True
        return list(requests)

    # ---- what happens between

    @property
    def is_granted(self) -> bool:
        """Whether the fetch in flight is the one that the prefiller was granted to."""
        return self.fetch is not None and self.fetch.request == self.granted

    def settle(self) -> None:
        """What has become possible happens."""
        if self.abandoned:
            self.fail("the engine gave the request up")
        waits = self.announced and not self.granted and not self.outcome and not self.stopped
        if self.fetch is not None and waits and list(self.fetch.prefillers) == [THERE]:
            self.granted = self.fetch.request
            self.source.events.append(Granted(self.announced, PAGES * PAGE_TOKENS, 0))
        elif self.declined and waits:
            self._stop("its decoder does not fetch it")
        if self.outcome and not self.released:
            if self._release_waits:
                self._release_waits = False
            else:
                self._release()

    def _release(self) -> None:
        if self.is_granted and self.outcome == "finished":
            assert not self.pages_reused, "the decoder has KV from pages that may hold another prompt's"
            assert self.fetch is not None
            self.target.events.append(Arrived(self.fetch.request, 1))
            self.fetch, self.arrived = None, True
        elif self.is_granted:
            self._end_fetch("the prefill was aborted")
        self.released = True
        self.source.events.append(Released(self.announced))

    def fail(self, reason: str) -> None:
        """The fetch in flight ends without its KV; a prefiller that was granted to it learns of that."""
        if self.fetch is None:
            return
        if self.is_granted and not self.released:
            self._stop(reason)
        self._end_fetch(reason)

    def _end_fetch(self, reason: str) -> None:
        assert self.fetch is not None
        self.target.events.append(Failed(self.fetch.request, reason))
        self.fetch = None

    def _stop(self, reason: str) -> None:
        self.stopped = True
        self.source.events.append(Stopped(self.announced, reason))


def exchange(port: Port) -> Exchange:
    clock = itertools.count()
    return Exchange(port, logging.getLogger("two-ranks"), lambda: next(clock) * DRAIN_INTERVAL_SECONDS)


class PrefillerRank:
    """What SGLang's scheduler does with a sender."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.endpoint: Any = SimpleNamespace(
            attn_cp_size=1,
            exchange=exchange(wire.source),
            kv_args=SimpleNamespace(page_size=PAGE_TOKENS),
            page_numbers=PageNumbers(None),
            bootstrap_timeout=float("inf"),
            take_prompt_tokens=lambda: 0,
            take_prompt_digest=lambda: "d",
            take_pull=lambda: None,
            place_room=lambda *_: "",
            report_stages=lambda *_: None,
            forget_room=lambda *_: None,
            prompt_parts=lambda page_count, *_: PromptParts(page_count * PAGE_TOKENS),
        )
        self.sender: Sender | None = None
        self.end: int | None = None
        """How the request ended, once its pages are freed."""
        self._sent_pages = 0

    def add(self) -> None:
        self.sender = Sender(self.endpoint, BOOTSTRAP, ROOM)

    def compute(self, end_page: int) -> None:
        """Passes up to this page, if SGLang would run them: the decoder has given pages, and the request goes on."""
        if self.sender is None or self.end is not None:
            return
        if not self._sent_pages:
            if self.sender.poll() != KVPoll.WaitingForInput:
                return
            self.sender.init(PAGES, 3)
        self.sender.send(array("i", range(100 + self._sent_pages, 100 + end_page)))
        self._sent_pages = end_page

    def abort(self) -> None:
        if self.sender is not None and self.end is None:
            self.sender.abort()

    def pass_limit(self) -> None:
        """SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT is over, for a request that still waits for its decoder."""
        self.endpoint.bootstrap_timeout = -1.0

    def round(self) -> None:
        if self.sender is None or self.end is not None or (state := self.sender.poll()) not in ENDS:
            return
        if state == KVPoll.Failed:
            raises_transfer_error(self.sender)
            self._wire.pages_reused = not self._wire.released
        else:
            assert self._wire.released, "SGLang frees pages that are read"
        self.sender.clear()
        self.end = state


class AtOnce(Executor):
    """Answers a lookup before the next statement of the scheduler's thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class DecoderRank:
    """What SGLang's scheduler does with a receiver."""

    def __init__(self, wire: Wire, *, moves: bool) -> None:
        """``moves``: whether a prefiller that is looked up again is found at another address each time."""
        self._wire = wire
        known: Future[Any] = Future()
        known.set_result("a topology")
        places = [RankPlace(0, 0, 0, 0)]
        ports = itertools.count(THERE.port, int(moves))
        self.endpoint: Any = SimpleNamespace(
            exchange=exchange(wire.target),
            kv_args=SimpleNamespace(page_size=PAGE_TOKENS),
            waiting_timeout=300.0,
            pair_check=None,
            prefillers=Prefillers(lambda *_: {"rank_ip": THERE.host, "rank_port": next(ports)}, AtOnce()),
            places=lambda *_: places,
            ask_again=lambda _: known,
            learn=lambda *_: None,
            prefill_info_table={},
            forget_prefiller=lambda _: None,
            prompt_parts=lambda page_count, *_: PromptParts(page_count * PAGE_TOKENS),
        )
        self.receiver: Receiver | None = None
        self.end: int | None = None

    def add(self) -> None:
        """Queued: its prefiller is known, its pages are not there yet."""
        if self.receiver is None:
            self.receiver = Receiver(self.endpoint, BOOTSTRAP, ROOM)
            self.receiver.init(0)
            assert self.receiver.poll() == KVPoll.WaitingForInput

    def fetch(self) -> None:
        self.add()
        assert self.receiver is not None
        self.receiver.send_metadata(array("i", range(7, 7 + PAGES)), 2)

    def abort(self) -> None:
        if self.receiver is not None and self.end is None:
            self.receiver.abort()

    def round(self) -> None:
        if self.receiver is None or self.end is not None or (state := self.receiver.poll()) not in ENDS:
            return
        if state == KVPoll.Failed:
            self.receiver.ensure_abort_notified()
            if self.receiver.abort_notified and not self.endpoint.exchange.is_quiet(ROOM):
                return  # SGLang asks again before it frees the pages
            raises_transfer_error(self.receiver)
        assert self._wire.fetch is None, "SGLang frees pages that are written to"
        self.receiver.clear()
        self.end = state


def raises_transfer_error(ended: Sender | Receiver) -> None:
    try:
        ended.failure_exception()
    except KVTransferError:
        return
    raise KvConnectorError("a failed transfer raised nothing")
